//! The program: for each architecture a tree of comparisons over the numbers of calls, tests of arguments at its leaves.

use std::collections::BTreeMap;

use super::{Action, Arch, Compare, Profile, Rule, Test};

/// The kernel's limit.
const LENGTH_MAX: usize = 4096;
/// Of one rule: one for each argument.
const TESTS_MAX: usize = 6;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// Where the kernel puts what the program looks at.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
const ENOSYS: u16 = 38;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} instructions are more than the {LENGTH_MAX} that the kernel takes")]
pub struct TooLong(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    /// Instructions to skip.
    yes: u8,
    no: u8,
    value: u32,
}

/// What is to be done about the calls from a number on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leaf<'a> {
    from: u32,
    /// In order; the first whose tests hold decides.
    choices: Vec<(&'a [Test], Action)>,
    otherwise: Action,
}

/// The program as the kernel takes it, eight bytes an instruction.
pub fn compile(profile: &Profile) -> Result<Vec<u64>, TooLong> {
    // A choice must not be longer than a conditional jump reaches.
    if let Some(rule) = profile.rules.iter().find(|rule| rule.tests.len() > TESTS_MAX) {
        return Err(TooLong(rule.tests.len()));
    }
    let mut out = vec![load(ARCHITECTURE)];
    for arch in &profile.architectures {
        let mut part = vec![load(NUMBER)];
        part.extend(tree(&leaves(profile, *arch)));
        // Further than a conditional jump reaches.
        out.push(Instruction { code: IF_EQUAL, yes: 1, no: 0, value: arch.audit() });
        out.push(Instruction { code: JUMP, yes: 0, no: 0, value: part.len() as u32 });
        out.extend(part);
    }
    // A program of another architecture could say one number and mean another.
    out.push(end(Action::KillProcess));
    if out.len() > LENGTH_MAX {
        return Err(TooLong(out.len()));
    }
    Ok(out.into_iter().map(Instruction::pack).collect())
}

fn leaves(profile: &Profile, arch: Arch) -> Vec<Leaf<'_>> {
    let mut calls: BTreeMap<u32, Vec<&Rule>> = BTreeMap::new();
    for rule in &profile.rules {
        for number in rule.names.iter().filter_map(|name| arch.number(name)) {
            calls.entry(number).or_default().push(rule);
        }
    }
    let known = calls.keys().next_back().copied();
    let plain = |from, action| Leaf { from, choices: vec![], otherwise: action };
    let mut leaves = vec![plain(0, profile.default)];
    for (number, rules) in calls {
        let leaf = leaf(number, &rules, profile.default);
        put(&mut leaves, leaf);
        put(&mut leaves, plain(number + 1, profile.default));
    }
    // Calls newer than the profile do not exist for it: libraries then take the older way, where EPERM would end them.
    if let (Some(known), Action::Errno(_)) = (known, profile.default) {
        put(&mut leaves, plain(known + 1, Action::Errno(ENOSYS)));
    }
    leaves
}

fn leaf<'a>(from: u32, rules: &[&'a Rule], default: Action) -> Leaf<'a> {
    let mut choices = Vec::new();
    for rule in rules {
        if rule.tests.is_empty() {
            return Leaf { from, choices, otherwise: rule.action };
        }
        choices.push((&rule.tests[..], rule.action));
    }
    Leaf { from, choices, otherwise: default }
}

/// Ranges that mean the same are one.
fn put<'a>(leaves: &mut Vec<Leaf<'a>>, leaf: Leaf<'a>) {
    if leaves.last().is_some_and(|last| last.from == leaf.from) {
        leaves.pop();
    }
    let is_same =
        leaves.last().is_some_and(|last| last.choices == leaf.choices && last.otherwise == leaf.otherwise);
    if !is_same {
        leaves.push(leaf);
    }
}

/// With the number in the accumulator.
fn tree(leaves: &[Leaf<'_>]) -> Vec<Instruction> {
    let [_, .., _] = leaves else {
        return leaves.first().map(judge).unwrap_or_default();
    };
    let (low, high) = leaves.split_at(leaves.len() / 2);
    let (below, above) = (tree(low), tree(high));
    let value = high[0].from;
    let mut out = match u8::try_from(below.len()) {
        Ok(skip) => vec![Instruction { code: IF_AT_LEAST, yes: skip, no: 0, value }],
        Err(_) => vec![
            Instruction { code: IF_AT_LEAST, yes: 0, no: 1, value },
            Instruction { code: JUMP, yes: 0, no: 0, value: below.len() as u32 },
        ],
    };
    out.extend(below);
    out.extend(above);
    out
}

fn judge(leaf: &Leaf<'_>) -> Vec<Instruction> {
    let mut out = Vec::new();
    for (tests, action) in &leaf.choices {
        out.extend(choice(tests, *action));
    }
    out.push(end(leaf.otherwise));
    out
}

/// The tests one after the other, then the action; each leaves to behind the action when it does not hold.
fn choice(tests: &[Test], action: Action) -> Vec<Instruction> {
    let mut out = vec![end(action)];
    for one in tests.iter().rev() {
        // A choice is a few dozen instructions: six arguments of at most eight.
        let mut before = test(one, out.len() as u8);
        before.append(&mut out);
        out = before;
    }
    out
}

/// Falls through when the test holds, else skips `rest` more. An argument is two words of which each is compared.
fn test(test: &Test, rest: u8) -> Vec<Instruction> {
    let low = ARGUMENTS + u32::from(test.argument) * 8;
    let (value_high, value_low) = ((test.value >> 32) as u32, test.value as u32);
    let jump = |code, value, yes, no| Instruction { code, yes, no, value };
    let words = |code, is_wanted: bool| {
        // high greater: decided; high equal: look at low; else the contrary.
        let (yes, no) = if is_wanted { (0, rest) } else { (rest, 0) };
        let decided = |skip: u8, outcome: bool| if outcome == is_wanted { skip } else { skip + rest };
        vec![
            load(low + 4),
            jump(IF_GREATER, value_high, decided(3, true), 0),
            jump(IF_EQUAL, value_high, 0, decided(2, false)),
            load(low),
            jump(code, value_low, yes, no),
        ]
    };
    match test.compare {
        Compare::Equal => vec![
            load(low + 4),
            jump(IF_EQUAL, value_high, 0, 2 + rest),
            load(low),
            jump(IF_EQUAL, value_low, 0, rest),
        ],
        Compare::NotEqual => vec![
            load(low + 4),
            jump(IF_EQUAL, value_high, 0, 2),
            load(low),
            jump(IF_EQUAL, value_low, rest, 0),
        ],
        Compare::Masked(mask) => vec![
            load(low + 4),
            Instruction { code: AND, yes: 0, no: 0, value: (mask >> 32) as u32 },
            jump(IF_EQUAL, value_high, 0, 3 + rest),
            load(low),
            Instruction { code: AND, yes: 0, no: 0, value: mask as u32 },
            jump(IF_EQUAL, value_low, 0, rest),
        ],
        Compare::Greater => words(IF_GREATER, true),
        Compare::GreaterOrEqual => words(IF_AT_LEAST, true),
        Compare::Less => words(IF_AT_LEAST, false),
        Compare::LessOrEqual => words(IF_GREATER, false),
    }
}

fn load(at: u32) -> Instruction {
    Instruction { code: LOAD, yes: 0, no: 0, value: at }
}

fn end(action: Action) -> Instruction {
    let value = match action {
        Action::KillProcess => 0x8000_0000,
        Action::KillThread => 0,
        Action::Trap => 0x0003_0000,
        Action::Errno(errno) => 0x0005_0000 | u32::from(errno),
        Action::Log => 0x7ffc_0000,
        Action::Allow => 0x7fff_0000,
    };
    Instruction { code: RETURN, yes: 0, no: 0, value }
}

// === impl Instruction ===

impl Instruction {
    fn pack(self) -> u64 {
        u64::from(self.code)
            | u64::from(self.yes) << 16
            | u64::from(self.no) << 24
            | u64::from(self.value) << 32
    }
}
