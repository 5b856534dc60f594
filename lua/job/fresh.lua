-- For a job that is stored as one field `j`, build the record that `s` would hold.
local RECORD = '>BI4I2I2I2BBBI4I8I8I8I8I8I8I8I8c8Bc0c0'
if whole then
  local accepted, most, limit = struct.unpack(WHOLE, whole)
  raw = struct.pack(RECORD, PENDING, 1, 0, most, 0, 0, 0, 0, limit,
    0, accepted, 0, 0, 0, 0, 0, accepted, '\0\0\0\0\0\0\0\0', 0, '', '\0\0')
end
