//! Seccomp: which system calls a container may make, from the words of a profile to the program that the kernel runs.
//!
//! A profile is a list of rules, as OCI and Docker write them ([`parse`]), or our own default one ([`default_profile`]).
//! [`compile`] makes a tree of comparisons over ranges of numbers: a call is judged after some ten steps, where a list takes
//! hundreds.

mod default;
mod numbers;
mod program;

use std::collections::BTreeSet;

use serde::Deserialize;

pub use default::default_profile;
pub use program::{TooLong, compile};

/// What a machine speaks, with what its old programs speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    X86_64,
    I386,
    Aarch64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    KillProcess,
    KillThread,
    Trap,
    Errno(u16),
    Log,
    Allow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    NotEqual,
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    /// The argument under the mask is the value.
    Masked(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Which argument, from 0 to 5.
    pub argument: u8,
    pub compare: Compare,
    pub value: u64,
}

/// The first rule that names a call and whose tests all hold decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub names: Vec<String>,
    pub action: Action,
    pub tests: Vec<Test>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub default: Action,
    pub rules: Vec<Rule>,
    pub architectures: BTreeSet<Arch>,
    /// Of the seccomp call.
    pub flags: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum BadProfile {
    #[error("the seccomp profile is not understood: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the seccomp profile has the unknown {0} {1:?}")]
    Unknown(&'static str, String),
    #[error("the seccomp profile tests argument {0}; there are six, from 0")]
    Argument(u32),
    #[error("the seccomp profile is too long")]
    TooLong(#[from] TooLong),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct File {
    default_action: String,
    default_errno_ret: Option<u16>,
    architectures: Vec<String>,
    flags: Vec<String>,
    syscalls: Vec<FileRule>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct FileRule {
    names: Vec<String>,
    /// As old profiles of Docker have it.
    name: String,
    action: String,
    errno_ret: Option<u16>,
    args: Option<Vec<FileTest>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileTest {
    index: u32,
    #[serde(default)]
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// Reads a profile in the form of the OCI runtime specification. `native` is what the machine speaks when the profile does
/// not say.
pub fn parse(text: &str, native: Arch) -> Result<Profile, BadProfile> {
    let file: File = serde_json::from_str(text)?;
    let default = action(&file.default_action, file.default_errno_ret)?;
    let mut rules = Vec::new();
    for rule in file.syscalls {
        let mut names = rule.names;
        names.extend(Some(rule.name).filter(|name| !name.is_empty()));
        let tests = rule.args.unwrap_or_default().iter().map(test).collect::<Result<Vec<_>, _>>()?;
        let action = action(&rule.action, rule.errno_ret)?;
        // As runc: tests of different arguments must all hold; with two of the same, any of them is enough.
        let arguments: BTreeSet<u8> = tests.iter().map(|test| test.argument).collect();
        if arguments.len() == tests.len() {
            rules.push(Rule { names, action, tests });
        } else {
            rules.extend(tests.into_iter().map(|test| Rule {
                names: names.clone(),
                action,
                tests: vec![test],
            }));
        }
    }
    // Architectures that we do not know are those of other machines.
    let mut architectures: BTreeSet<Arch> =
        file.architectures.iter().filter_map(|name| Arch::of(name)).collect();
    architectures.insert(native);
    let mut flags = 0;
    for flag in &file.flags {
        flags |= match flag.as_str() {
            "SECCOMP_FILTER_FLAG_TSYNC" => 0,
            "SECCOMP_FILTER_FLAG_LOG" => 2,
            "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => 4,
            _ => return Err(BadProfile::Unknown("flag", flag.clone())),
        };
    }
    Ok(Profile { default, rules, architectures, flags })
}

fn action(name: &str, errno: Option<u16>) -> Result<Action, BadProfile> {
    const EPERM: u16 = 1;
    Ok(match name {
        "SCMP_ACT_ALLOW" => Action::Allow,
        "SCMP_ACT_ERRNO" => Action::Errno(errno.unwrap_or(EPERM)),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KillThread,
        "SCMP_ACT_KILL_PROCESS" => Action::KillProcess,
        "SCMP_ACT_TRAP" => Action::Trap,
        "SCMP_ACT_LOG" => Action::Log,
        _ => return Err(BadProfile::Unknown("action", name.to_owned())),
    })
}

fn test(test: &FileTest) -> Result<Test, BadProfile> {
    let argument =
        u8::try_from(test.index).ok().filter(|i| *i < 6).ok_or(BadProfile::Argument(test.index))?;
    let (compare, value) = match test.op.as_str() {
        "SCMP_CMP_NE" => (Compare::NotEqual, test.value),
        "SCMP_CMP_LT" => (Compare::Less, test.value),
        "SCMP_CMP_LE" => (Compare::LessOrEqual, test.value),
        "SCMP_CMP_EQ" => (Compare::Equal, test.value),
        "SCMP_CMP_GE" => (Compare::GreaterOrEqual, test.value),
        "SCMP_CMP_GT" => (Compare::Greater, test.value),
        "SCMP_CMP_MASKED_EQ" => (Compare::Masked(test.value), test.value_two),
        _ => return Err(BadProfile::Unknown("comparison", test.op.clone())),
    };
    Ok(Test { argument, compare, value })
}

// === impl Arch ===

impl Arch {
    fn of(name: &str) -> Option<Arch> {
        Some(match name {
            "SCMP_ARCH_X86_64" => Arch::X86_64,
            "SCMP_ARCH_X86" => Arch::I386,
            "SCMP_ARCH_AARCH64" => Arch::Aarch64,
            _ => return None,
        })
    }

    /// As the kernel tells it to the program (`AUDIT_ARCH_…`).
    fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::I386 => 0x4000_0003,
            Arch::Aarch64 => 0xc000_00b7,
        }
    }

    /// None where the architecture does not have the call.
    fn number(self, name: &str) -> Option<u32> {
        let at = numbers::TABLE.binary_search_by_key(&name, |row| row.0).ok()?;
        let (_, x86_64, i386, aarch64) = numbers::TABLE[at];
        let number = match self {
            Arch::X86_64 => x86_64,
            Arch::I386 => i386,
            Arch::Aarch64 => aarch64,
        };
        (number != u16::MAX).then_some(number.into())
    }
}

#[cfg(test)]
mod tests;
