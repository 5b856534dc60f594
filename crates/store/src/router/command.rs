//! What the router sends: a plain command or a script, each with the one key that selects the node.

use std::sync::OnceLock;

use redis::{Arg, Cmd, ToRedisArgs};

/// A Lua script, with its name for people.
#[derive(Debug)]
pub struct ScriptSource {
    /// `<noun>/<verb>`, the name of its file.
    pub name: &'static str,
    /// The whole text.
    pub body: &'static str,
    sha: OnceLock<String>,
}

impl ScriptSource {
    /// A script, for a `static`.
    pub const fn new(name: &'static str, body: &'static str) -> ScriptSource {
        ScriptSource { name, body, sha: OnceLock::new() }
    }

    /// The SHA-1 of the body, by which Redis calls the script; computed once.
    pub fn sha(&self) -> &str {
        self.sha.get_or_init(|| redis::Script::new(self.body).get_hash().to_owned())
    }
}

/// One command on one key.
#[derive(Debug, Clone)]
pub struct Command {
    pub(super) cmd: Cmd,
    key_at: usize,
    pub(super) script: Option<&'static ScriptSource>,
}

impl Command {
    /// A plain command whose key is its first argument, as in `GET key`.
    pub fn plain(cmd: Cmd) -> Command {
        Command { cmd, key_at: 1, script: None }
    }

    /// A plain command whose key is the argument with this number; the command's name has number 0.
    pub fn plain_at(cmd: Cmd, key_at: usize) -> Command {
        Command { cmd, key_at, script: None }
    }

    /// A script on its one key; [`Command::arg`] appends the arguments.
    pub fn script(source: &'static ScriptSource, key: &[u8]) -> Command {
        Self::script_with_capacity(source, key, 8, 256)
    }

    /// The same with a size hint of arguments and bytes, so that no buffer grows.
    pub fn script_with_capacity(source: &'static ScriptSource, key: &[u8], args: usize, bytes: usize) -> Command {
        let mut cmd = Cmd::with_capacity(args + 4, bytes + key.len() + 48);
        cmd.arg("EVALSHA").arg(source.sha()).arg("1").arg(key);
        Command { cmd, key_at: 3, script: Some(source) }
    }

    /// Appends an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Command {
        self.cmd.arg(arg);
        self
    }

    /// Appends the arguments up to the last one that is not empty: every argument costs Redis time.
    #[must_use]
    pub fn optional<const N: usize>(mut self, args: &[Vec<u8>; N]) -> Command {
        let given = args.iter().rposition(|arg| !arg.is_empty()).map_or(0, |last| last + 1);
        for arg in &args[..given] {
            self.cmd.arg(arg.as_slice());
        }
        self
    }

    /// The key that selects the node; empty if the command has none.
    pub fn key(&self) -> &[u8] {
        match self.cmd.args_iter().nth(self.key_at) {
            Some(Arg::Simple(key)) => key,
            _ => &[],
        }
    }

    /// The same call with the script's text instead of its hash; afterwards the node has the script.
    pub(super) fn as_eval(&self, source: &'static ScriptSource) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("EVAL").arg(source.body);
        for arg in self.cmd.args_iter().skip(2) {
            if let Arg::Simple(bytes) = arg {
                cmd.arg(bytes);
            }
        }
        cmd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SCRIPT: ScriptSource = ScriptSource::new("test/return", "return 1");

    #[test]
    fn the_key_is_found_in_plain_commands_and_scripts() {
        let mut get = redis::cmd("GET");
        get.arg("k");
        assert_eq!(Command::plain(get).key(), b"k");
        let mut object = redis::cmd("OBJECT");
        object.arg("ENCODING").arg("o");
        assert_eq!(Command::plain_at(object, 2).key(), b"o");
        assert_eq!(Command::script(&SCRIPT, b"s").arg(1).key(), b"s");
    }

    #[test]
    fn what_is_empty_at_the_end_is_left_out() {
        let call = |args: [Vec<u8>; 3]| Command::script(&SCRIPT, b"s").optional(&args).cmd.args_iter().count() - 4;
        assert_eq!(call([vec![], vec![], vec![]]), 0);
        assert_eq!(call([vec![], vec![1], vec![]]), 2);
        assert_eq!(call([vec![], vec![], vec![1]]), 3);
    }

    #[test]
    fn eval_carries_the_text_and_the_same_arguments() {
        let call = Command::script(&SCRIPT, b"s").arg(7).arg("x");
        let wanted = b"*6\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n1\r\n$1\r\ns\r\n$1\r\n7\r\n$1\r\nx\r\n";
        assert_eq!(call.as_eval(&SCRIPT).get_packed_command(), wanted);
        assert_eq!(SCRIPT.sha(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
