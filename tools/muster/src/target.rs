//! Which stack a command uses: flags take precedence over the environment, and that over the state file of a local
//! stack.

use std::path::PathBuf;

use clap::Args;

use crate::{
    outcome::{Code, Failure},
    stack::Stack,
};

/// Flags that every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Target {
    /// Address of a gateway; several may be given, separated by commas
    #[arg(long, global = true, env = "MUSTER_URL", value_name = "URL")]
    pub(crate) url: Option<String>,

    /// API key
    #[arg(long, global = true, env = "MUSTER_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,

    /// The tenant
    #[arg(long, global = true, env = "MUSTER_TENANT", value_name = "TENANT")]
    pub(crate) tenant: Option<String>,

    /// State file of the local stack [default: .muster/stack.json; of `dev`, stack.json in --dir]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) state_file: Option<PathBuf>,
}

/// The addresses of the API, and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) urls: Vec<String>,
    pub(crate) api_key: String,
    pub(crate) tenant: Option<String>,
}

impl Target {
    /// The local stack, if there is one. A state file that is named explicitly must exist.
    pub(crate) fn stack(&self) -> anyhow::Result<Option<Stack>> {
        let path = self.state_file.clone().unwrap_or_else(Stack::default_path);
        let stack = Stack::read(&path)?;
        if stack.is_none() && self.state_file.is_some() {
            let failure = Failure::new(format!("there is no state file {}", path.display()));
            return Err(failure
                .hint("`muster dev` writes it once the stack is up; `muster stack from-compose` writes it for a compose stack")
                .into());
        }
        Ok(stack)
    }

    /// The API's address and key.
    pub(crate) fn door(&self) -> anyhow::Result<Door> {
        let needs_stack = self.url.is_none() || self.api_key.is_none();
        let stack = if needs_stack { self.stack()? } else { None };
        self.door_of(stack)
    }

    fn door_of(&self, stack: Option<Stack>) -> anyhow::Result<Door> {
        let urls = match (&self.url, &stack) {
            (Some(url), _) => {
                url.split(',').map(|u| u.trim().trim_end_matches('/').to_owned()).filter(|u| !u.is_empty()).collect()
            }
            (None, Some(stack)) => stack.gateways(),
            (None, None) => Vec::new(),
        };
        if urls.is_empty() {
            let failure = Failure::new("no stack found").with_code(Code::Error);
            return Err(failure
                .hint(
                    "start one with `muster dev`, describe one with `muster stack from-compose`, or give --url \
                     (MUSTER_URL)",
                )
                .into());
        }
        if let Some(bad) = urls.iter().find(|u| !u.starts_with("http://") && !u.starts_with("https://")) {
            return Err(Failure::usage(format!("{bad:?} is not a URL")).hint("like http://127.0.0.1:8081").into());
        }
        let Some(api_key) = self.api_key.clone().or(stack.map(|s| s.api_key)) else {
            return Err(Failure::new("no API key").hint("give --api-key (MUSTER_API_KEY)").into());
        };
        Ok(Door { urls, api_key, tenant: self.tenant.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Process;

    fn local() -> Stack {
        let gateway = |n: u32| Process {
            name: format!("gateway-{n}"),
            service: "gateway".into(),
            pid: n,
            http: Some(format!("http://127.0.0.1:{}", 8079 + 2 * n)),
            ..Process::default()
        };
        Stack {
            api_key: "of-the-stack".into(),
            redis_url: String::new(),
            nats_url: String::new(),
            processes: vec![gateway(1), gateway(2)],
            ..Stack::default()
        }
    }

    fn flags(url: Option<&str>, key: Option<&str>) -> Target {
        Target { url: url.map(str::to_owned), api_key: key.map(str::to_owned), tenant: None, state_file: None }
    }

    #[test]
    fn flags_win_over_the_state_file() {
        let door = flags(Some("http://h:1/, http://h:2"), Some("k")).door_of(Some(local())).unwrap();
        assert_eq!(door.urls, ["http://h:1", "http://h:2"]);
        assert_eq!(door.api_key, "k");
        let door = flags(None, None).door_of(Some(local())).unwrap();
        assert_eq!(door.urls, ["http://127.0.0.1:8081", "http://127.0.0.1:8083"]);
        assert_eq!(door.api_key, "of-the-stack");
    }

    #[test]
    fn what_is_missing_is_said() {
        let said = |t: Target| t.door_of(None).unwrap_err().to_string();
        assert_eq!(said(flags(None, Some("k"))), "no stack found");
        assert_eq!(said(flags(Some("http://h:1"), None)), "no API key");
        assert_eq!(said(flags(Some("h:1"), Some("k"))), "\"h:1\" is not a URL");
    }
}
