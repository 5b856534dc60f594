//! Which key may do what.
//!
//! Knows: the scopes, and every operation of the API with the access that it requires, in one list. Promises: a request
//! that maps to no operation still requires a key; only the operations that the contract names as open are open. Knows
//! no transport: [`endpoints`](crate::endpoints) maps HTTP requests to operations. Leaves to others: identifying the
//! caller (`auth`), and hiding the jobs of other tenants (the routes answer that they are not found).

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Submit,
    Read,
    Payloads,
    Control,
    Worker,
    Approve,
    Policy,
    Admin,
}

impl Scope {
    pub(crate) const ALL: [Scope; 8] = [
        Scope::Submit,
        Scope::Read,
        Scope::Payloads,
        Scope::Control,
        Scope::Worker,
        Scope::Approve,
        Scope::Policy,
        Scope::Admin,
    ];

    /// The name of the scope in the API and in settings.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Scope::Submit => "submit",
            Scope::Read => "read",
            Scope::Payloads => "payloads",
            Scope::Control => "control",
            Scope::Worker => "worker",
            Scope::Approve => "approve",
            Scope::Policy => "policy",
            Scope::Admin => "admin",
        }
    }

    /// The bit of the scope in a set.
    fn bit(self) -> u16 {
        1 << self as u16
    }

    /// Parses the name of a scope.
    pub(crate) fn parse(text: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scopes(u16);

impl Scopes {
    /// The set of all scopes.
    pub(crate) fn all() -> Scopes {
        Scope::ALL.into_iter().collect()
    }

    /// Whether the set contains this scope.
    pub(crate) fn has(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// The names of the scopes in the set.
    pub(crate) fn words(self) -> Vec<&'static str> {
        Scope::ALL.into_iter().filter(|scope| self.has(*scope)).map(Scope::as_str).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Scopes {
        Scopes(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

/// What a caller needs for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No key is needed.
    Open,
    /// Any key.
    Key,
    /// A key with this scope.
    Scope(Scope),
    /// A key for all tenants with the scope `admin`: the operation concerns the whole fleet.
    Fleet,
}

macro_rules! operations {
    ($($name:ident: $access:expr,)*) => {
        /// What a caller can ask of the API, over any transport.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Operation {
            $($name,)*
        }

        impl Operation {
            /// All operations.
            #[cfg(test)]
            pub(crate) const ALL: &[Operation] = &[$(Operation::$name,)*];

            /// The access that the operation requires.
            pub(crate) fn access(self) -> Access {
                match self {
                    $(Operation::$name => $access,)*
                }
            }
        }
    };
}

operations! {
    SubmitJob: Access::Scope(Scope::Submit),
    GetJob: Access::Scope(Scope::Read),
    SubmitBatch: Access::Scope(Scope::Submit),
    ListJobs: Access::Scope(Scope::Read),
    LeaseJobs: Access::Scope(Scope::Worker),
    ExtendLeases: Access::Scope(Scope::Worker),
    CompleteJobs: Access::Scope(Scope::Worker),
    FailJobs: Access::Scope(Scope::Worker),
    ReleaseJobs: Access::Scope(Scope::Worker),
    GetHistory: Access::Scope(Scope::Read),
    ExplainJob: Access::Scope(Scope::Read),
    CancelJob: Access::Scope(Scope::Control),
    RetryJob: Access::Scope(Scope::Control),
    DeleteJob: Access::Scope(Scope::Control),
    WatchEvents: Access::Scope(Scope::Read),
    ListDeadLetters: Access::Scope(Scope::Read),
    CountDeadLetters: Access::Scope(Scope::Read),
    DeleteDeadMessage: Access::Fleet,
    StartBulk: Access::Scope(Scope::Control),
    ListBulk: Access::Scope(Scope::Read),
    GetBulk: Access::Scope(Scope::Read),
    CancelBulk: Access::Scope(Scope::Control),
    ListTopics: Access::Scope(Scope::Read),
    GetTopic: Access::Scope(Scope::Read),
    PutTopic: Access::Scope(Scope::Admin),
    PauseTopic: Access::Scope(Scope::Control),
    ResumeTopic: Access::Scope(Scope::Control),
    ValidateWorkflow: Access::Scope(Scope::Read),
    GetWorkflowSchema: Access::Scope(Scope::Read),
    ListWorkflows: Access::Scope(Scope::Read),
    GetWorkflow: Access::Scope(Scope::Read),
    PutWorkflow: Access::Scope(Scope::Admin),
    DeleteWorkflow: Access::Scope(Scope::Admin),
    ListWorkflowVersions: Access::Scope(Scope::Read),
    GetWorkflowVersion: Access::Scope(Scope::Read),
    DrawWorkflow: Access::Scope(Scope::Read),
    StartRun: Access::Scope(Scope::Submit),
    GetRun: Access::Scope(Scope::Read),
    ListRuns: Access::Scope(Scope::Read),
    StartRunBulk: Access::Scope(Scope::Control),
    CancelRun: Access::Scope(Scope::Control),
    PauseRun: Access::Scope(Scope::Control),
    ResumeRun: Access::Scope(Scope::Control),
    CompensateRun: Access::Scope(Scope::Control),
    SignalRun: Access::Scope(Scope::Submit),
    CompleteStep: Access::Scope(Scope::Control),
    SkipStep: Access::Scope(Scope::Control),
    RerunRun: Access::Scope(Scope::Control),
    GetTimeline: Access::Scope(Scope::Read),
    ExplainRun: Access::Scope(Scope::Read),
    DrawRun: Access::Scope(Scope::Read),
    ListItems: Access::Scope(Scope::Read),
    ListWorkers: Access::Scope(Scope::Read),
    DrainWorker: Access::Scope(Scope::Control),
    ListReplicas: Access::Fleet,
    ListLoops: Access::Fleet,
    ListLocks: Access::Fleet,
    ExamineStores: Access::Fleet,
    ListAudit: Access::Scope(Scope::Admin),
    VerifyAudit: Access::Fleet,
    GetConfig: Access::Scope(Scope::Admin),
    PutConfig: Access::Scope(Scope::Admin),
    GetEffectiveConfig: Access::Scope(Scope::Admin),
    CreateKey: Access::Scope(Scope::Admin),
    ListKeys: Access::Scope(Scope::Admin),
    DeleteKey: Access::Scope(Scope::Admin),
    RotateKey: Access::Scope(Scope::Admin),
    WhoAmI: Access::Key,
    GetStatus: Access::Open,
    GetLandingPage: Access::Open,
    CheckLive: Access::Open,
    CheckReady: Access::Open,
    GetOpenApi: Access::Open,
    GetDocsPage: Access::Open,
    GetAsset: Access::Open,
}

/// The access that a request requires. A request that maps to no operation still requires a key, so that a caller
/// without a key cannot learn the shape of the API.
pub(crate) fn needed(operation: Option<Operation>) -> Access {
    operation.map_or(Access::Key, Operation::access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_contract_names_is_open() {
        use Operation::{CheckLive, CheckReady, GetAsset, GetDocsPage, GetLandingPage, GetOpenApi, GetStatus};
        let open = Operation::ALL.iter().copied().filter(|operation| operation.access() == Access::Open);
        let contract = [GetStatus, GetLandingPage, CheckLive, CheckReady, GetOpenApi, GetDocsPage, GetAsset];
        assert_eq!(open.collect::<Vec<_>>(), contract);
        assert_eq!(needed(None), Access::Key);
        assert_eq!(needed(Some(CheckLive)), Access::Open);
    }

    #[test]
    fn scopes_are_told_apart() {
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(scope));
            let one: Scopes = [scope].into_iter().collect();
            assert_eq!(one.words(), [scope.as_str()]);
            assert!(Scopes::all().has(scope));
        }
        assert_eq!(Scope::parse("root"), None);
    }
}
