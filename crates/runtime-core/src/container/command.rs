//! What is executed, where, with which variables.

use crate::users::User;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What an image says of the program in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    pub working_dir: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub arguments: Vec<Vec<u8>>,
    pub environment: Vec<Vec<u8>>,
    pub directory: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCommand {
    #[error("no command specified")]
    None,
    #[error("the working directory has to be an absolute path")]
    Directory,
}

impl Command {
    /// A container's. The Pod's command replaces the image's entrypoint, and its arguments then too; values of variables
    /// need not be text.
    pub fn new(
        image: &Image,
        (command, args): (&[String], &[String]),
        envs: &[(String, Vec<u8>)],
        working_dir: &str,
        (hostname, has_terminal, user): (&str, bool, &User),
    ) -> Result<Self, NoCommand> {
        let (first, rest) = match (command.is_empty(), args.is_empty()) {
            (true, true) => (&image.entrypoint[..], &image.cmd[..]),
            (true, false) => (&image.entrypoint[..], args),
            (false, _) => (command, args),
        };
        let arguments: Vec<Vec<u8>> = first.iter().chain(rest).map(|s| s.clone().into_bytes()).collect();
        if arguments.first().is_none_or(Vec::is_empty) {
            return Err(NoCommand::None);
        }
        let directory = [working_dir, &image.working_dir, "/"].into_iter().find(|dir| !dir.is_empty());
        let directory = directory.unwrap_or("/");
        if !directory.starts_with('/') {
            return Err(NoCommand::Directory);
        }
        let mut environment = Variables::default();
        environment.set("PATH", DEFAULT_PATH.as_bytes());
        environment.set("HOSTNAME", hostname.as_bytes());
        if has_terminal {
            environment.set("TERM", b"xterm");
        }
        for variable in &image.env {
            let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
            environment.set(name, value.as_bytes());
        }
        for (name, value) in envs {
            environment.set(name, value);
        }
        if !environment.has("HOME") {
            environment.set("HOME", user.home.as_bytes());
        }
        Ok(Self { arguments, environment: environment.0, directory: directory.to_owned() })
    }

    /// One more in the same container: its variables and directory.
    pub fn beside(&self, command: &[String], has_terminal: bool) -> Result<Self, NoCommand> {
        if command.first().is_none_or(String::is_empty) {
            return Err(NoCommand::None);
        }
        let mut environment = Variables(self.environment.clone());
        if has_terminal && !environment.has("TERM") {
            environment.set("TERM", b"xterm");
        }
        let arguments = command.iter().map(|s| s.clone().into_bytes()).collect();
        Ok(Self { arguments, environment: environment.0, directory: self.directory.clone() })
    }

    /// The paths at which the program may be, as a shell would try them.
    pub(super) fn candidates(&self) -> Vec<Vec<u8>> {
        let Some(name) = self.arguments.first() else { return vec![] };
        if name.contains(&b'/') {
            return vec![name.clone()];
        }
        let path = self.environment.iter().find_map(|v| v.strip_prefix(b"PATH=")).unwrap_or_default();
        let in_dir = |dir: &[u8]| [if dir.is_empty() { b"." } else { dir }, b"/", name].concat();
        path.split(|b| *b == b':').map(in_dir).collect()
    }
}

#[derive(Default)]
struct Variables(Vec<Vec<u8>>);

impl Variables {
    fn place(&self, name: &str) -> Option<usize> {
        let is = |v: &Vec<u8>| v.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        self.0.iter().position(is)
    }

    fn has(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        let variable = [name.as_bytes(), b"=", value].concat();
        match self.place(name) {
            Some(at) => self.0[at] = variable,
            None => self.0.push(variable),
        }
    }
}
