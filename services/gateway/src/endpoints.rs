//! Which HTTP request asks for which operation.
//!
//! Knows: the method and the path of every operation, in one list. Promises: an operation has exactly one row. Leaves to
//! others: the access that an operation requires (`access`), and carrying it out (`routes`).

use http::Method;

use crate::access::Operation;

/// Every endpoint. The busiest come first.
pub(crate) const HTTP: &[(Method, &str, Operation)] = &[
    (Method::POST, "/api/v1/jobs", Operation::SubmitJob),
    (Method::GET, "/api/v1/jobs/{id}", Operation::GetJob),
    (Method::POST, "/api/v1/jobs/batch", Operation::SubmitBatch),
    (Method::GET, "/api/v1/jobs", Operation::ListJobs),
    (Method::POST, "/api/v1/worker/lease", Operation::LeaseJobs),
    (Method::POST, "/api/v1/worker/extend", Operation::ExtendLeases),
    (Method::POST, "/api/v1/worker/complete", Operation::CompleteJobs),
    (Method::POST, "/api/v1/worker/fail", Operation::FailJobs),
    (Method::POST, "/api/v1/worker/release", Operation::ReleaseJobs),
    (Method::GET, "/api/v1/jobs/{id}/history", Operation::GetHistory),
    (Method::GET, "/api/v1/jobs/{id}/explain", Operation::ExplainJob),
    (Method::POST, "/api/v1/jobs/{id}/cancel", Operation::CancelJob),
    (Method::POST, "/api/v1/jobs/{id}/retry", Operation::RetryJob),
    (Method::DELETE, "/api/v1/jobs/{id}", Operation::DeleteJob),
    (Method::GET, "/api/v1/events", Operation::WatchEvents),
    (Method::GET, "/api/v1/dlq", Operation::ListDeadLetters),
    (Method::GET, "/api/v1/dlq/summary", Operation::CountDeadLetters),
    (Method::DELETE, "/api/v1/dlq/messages/{id}", Operation::DeleteDeadMessage),
    (Method::POST, "/api/v1/jobs/bulk", Operation::StartBulk),
    (Method::GET, "/api/v1/operations", Operation::ListBulk),
    (Method::GET, "/api/v1/operations/{id}", Operation::GetBulk),
    (Method::POST, "/api/v1/operations/{id}/cancel", Operation::CancelBulk),
    (Method::GET, "/api/v1/topics", Operation::ListTopics),
    (Method::GET, "/api/v1/topics/{topic}", Operation::GetTopic),
    (Method::PUT, "/api/v1/topics/{topic}", Operation::PutTopic),
    (Method::POST, "/api/v1/topics/{topic}/pause", Operation::PauseTopic),
    (Method::POST, "/api/v1/topics/{topic}/resume", Operation::ResumeTopic),
    (Method::POST, "/api/v1/workflows/validate", Operation::ValidateWorkflow),
    (Method::GET, "/api/v1/schemas/workflow", Operation::GetWorkflowSchema),
    (Method::GET, "/api/v1/workflows", Operation::ListWorkflows),
    (Method::GET, "/api/v1/workflows/{name}", Operation::GetWorkflow),
    (Method::PUT, "/api/v1/workflows/{name}", Operation::PutWorkflow),
    (Method::DELETE, "/api/v1/workflows/{name}", Operation::DeleteWorkflow),
    (Method::GET, "/api/v1/workflows/{name}/versions", Operation::ListWorkflowVersions),
    (Method::GET, "/api/v1/workflows/{name}/versions/{version}", Operation::GetWorkflowVersion),
    (Method::GET, "/api/v1/workflows/{name}/graph", Operation::DrawWorkflow),
    (Method::POST, "/api/v1/workflows/{name}/runs", Operation::StartRun),
    (Method::GET, "/api/v1/runs/{id}", Operation::GetRun),
    (Method::GET, "/api/v1/runs", Operation::ListRuns),
    (Method::POST, "/api/v1/runs/bulk", Operation::StartRunBulk),
    (Method::POST, "/api/v1/runs/{id}/cancel", Operation::CancelRun),
    (Method::POST, "/api/v1/runs/{id}/pause", Operation::PauseRun),
    (Method::POST, "/api/v1/runs/{id}/resume", Operation::ResumeRun),
    (Method::POST, "/api/v1/runs/{id}/compensate", Operation::CompensateRun),
    (Method::POST, "/api/v1/runs/{id}/signals/{name}", Operation::SignalRun),
    (Method::POST, "/api/v1/runs/{id}/steps/{step}/complete", Operation::CompleteStep),
    (Method::POST, "/api/v1/runs/{id}/steps/{step}/skip", Operation::SkipStep),
    (Method::POST, "/api/v1/runs/{id}/rerun", Operation::RerunRun),
    (Method::GET, "/api/v1/runs/{id}/timeline", Operation::GetTimeline),
    (Method::GET, "/api/v1/runs/{id}/explain", Operation::ExplainRun),
    (Method::GET, "/api/v1/runs/{id}/graph", Operation::DrawRun),
    (Method::GET, "/api/v1/runs/{id}/steps/{step}/items", Operation::ListItems),
    (Method::GET, "/api/v1/workers", Operation::ListWorkers),
    (Method::POST, "/api/v1/workers/{id}/drain", Operation::DrainWorker),
    (Method::GET, "/api/v1/replicas", Operation::ListReplicas),
    (Method::GET, "/api/v1/loops", Operation::ListLoops),
    (Method::GET, "/api/v1/locks", Operation::ListLocks),
    (Method::GET, "/api/v1/doctor", Operation::ExamineStores),
    (Method::GET, "/api/v1/audit", Operation::ListAudit),
    (Method::GET, "/api/v1/audit/verify", Operation::VerifyAudit),
    (Method::GET, "/api/v1/config", Operation::GetConfig),
    (Method::PUT, "/api/v1/config", Operation::PutConfig),
    (Method::GET, "/api/v1/config/effective", Operation::GetEffectiveConfig),
    (Method::POST, "/api/v1/keys", Operation::CreateKey),
    (Method::GET, "/api/v1/keys", Operation::ListKeys),
    (Method::DELETE, "/api/v1/keys/{id}", Operation::DeleteKey),
    (Method::POST, "/api/v1/keys/{id}/rotate", Operation::RotateKey),
    (Method::GET, "/api/v1/whoami", Operation::WhoAmI),
    (Method::GET, "/api/v1/status", Operation::GetStatus),
    (Method::GET, "/", Operation::GetLandingPage),
    (Method::GET, "/livez", Operation::CheckLive),
    (Method::GET, "/readyz", Operation::CheckReady),
    (Method::GET, "/openapi.json", Operation::GetOpenApi),
    (Method::GET, "/docs", Operation::GetDocsPage),
    (Method::GET, "/assets/{file}", Operation::GetAsset),
];

/// The operation that a request asks for; `None` for an unknown path or method.
pub(crate) fn operation(method: &Method, pattern: Option<&str>) -> Option<Operation> {
    let pattern = pattern?;
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    HTTP.iter().find(|(m, p, _)| *p == pattern && m == method).map(|(_, _, operation)| *operation)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_has_one_endpoint() {
        let named: BTreeSet<Operation> = HTTP.iter().map(|(_, _, operation)| *operation).collect();
        assert_eq!(named, Operation::ALL.iter().copied().collect());
        assert_eq!(HTTP.len(), Operation::ALL.len());
    }

    #[test]
    fn a_head_request_is_a_get_and_what_is_unknown_is_no_operation() {
        assert_eq!(operation(&Method::HEAD, Some("/livez")), Some(Operation::CheckLive));
        assert_eq!(operation(&Method::PUT, Some("/api/v1/topics/{topic}")), Some(Operation::PutTopic));
        assert_eq!(operation(&Method::POST, Some("/livez")), None);
        assert_eq!(operation(&Method::PUT, Some("/api/v1/jobs")), None);
        assert_eq!(operation(&Method::GET, None), None);
    }
}
