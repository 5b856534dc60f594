-- The latest time for the next check of a job in this state (`fresh` = this call moves the job into the state).
-- The same rule as `latest_look` and `next_look` in domain/job/look.rs; a test compares them.
local function look(state, fresh, since, due, lease, deadline, start_by, started)
  local at
  if state == PENDING then
    if fresh or NOW - since < 30000000 then at = since + 30000000 else at = NOW + 300000000 end
  elseif state == SCHEDULED or state == RETRYING or state == AWAITING_APPROVAL then at = due
  elseif state == QUEUED then
    if fresh then at = NOW + 900000000 else at = NOW + 1350000000 end
  elseif state == DISPATCHED then at = NOW + 30000000
  elseif state == RUNNING then
    at = lease
    if due > 0 and due < at then at = due end
  else at = NOW end
  if deadline > 0 and deadline < at then at = deadline end
  if started == 0 and start_by > 0 and start_by < at then at = start_by end
  return at
end
