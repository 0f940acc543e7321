//! Which devices a container may use, as the program that the kernel asks on version 2 of cgroups. Version 1 has files for
//! it, whose words are read here.

/// A line of `devices.allow` of version 1: `c 1:3 rwm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    kind: Option<u32>,
    major: Option<u32>,
    minor: Option<u32>,
    access: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no rule for devices")]
pub struct BadRule(pub String);

const BLOCK: u32 = 1;
const CHARACTER: u32 = 2;
const MAKE: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 4;
const ALL: u32 = MAKE | READ | WRITE;

/// Registers: result; context, later room; kind, access, major, minor.
const RESULT: u64 = 0;
const ROOM: u64 = 1;
const KIND: u64 = 2;
const ACCESS: u64 = 3;
const MAJOR: u64 = 4;
const MINOR: u64 = 5;

const LOAD_WORD: u64 = 0x61;
const MOVE: u64 = 0xbf;
const MOVE_NUMBER: u64 = 0xb7;
const AND_NUMBER: u64 = 0x57;
const SHIFT_RIGHT: u64 = 0x77;
const IF_NOT_NUMBER: u64 = 0x55;
const IF_NOT: u64 = 0x5d;
const EXIT: u64 = 0x95;

/// The program that allows what any of these rules allows, and nothing else; an instruction is eight bytes.
pub fn compile(rules: &[String]) -> Result<Vec<u64>, BadRule> {
    let mut program = vec![
        step(LOAD_WORD, KIND, ROOM, 0, 0),
        step(MOVE, ACCESS, KIND, 0, 0),
        step(AND_NUMBER, KIND, 0, 0, 0xffff),
        step(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        step(LOAD_WORD, MAJOR, ROOM, 4, 0),
        step(LOAD_WORD, MINOR, ROOM, 8, 0),
    ];
    for rule in rules {
        let block = block(parse(rule)?);
        program.extend(block);
    }
    program.extend([step(MOVE_NUMBER, RESULT, 0, 0, 0), step(EXIT, 0, 0, 0, 0)]);
    Ok(program)
}

/// One rule: whatever does not hold leads behind it.
fn block(rule: Rule) -> Vec<u64> {
    let mut steps: Vec<(u64, u64, u64, u32, bool)> = Vec::new();
    if let Some(kind) = rule.kind {
        steps.push((IF_NOT_NUMBER, KIND, 0, kind, true));
    }
    if rule.access != ALL {
        steps.push((MOVE, ROOM, ACCESS, 0, false));
        steps.push((AND_NUMBER, ROOM, 0, rule.access, false));
        steps.push((IF_NOT, ROOM, ACCESS, 0, true));
    }
    for (register, number) in [(MAJOR, rule.major), (MINOR, rule.minor)] {
        steps.extend(number.map(|number| (IF_NOT_NUMBER, register, 0, number, true)));
    }
    let len = steps.len() + 2;
    let mut out: Vec<u64> = steps
        .into_iter()
        .enumerate()
        .map(|(at, (code, to, from, number, is_jump))| {
            let over = if is_jump { len - at - 1 } else { 0 };
            step(code, to, from, over as u64, number)
        })
        .collect();
    out.extend([step(MOVE_NUMBER, RESULT, 0, 0, 1), step(EXIT, 0, 0, 0, 0)]);
    out
}

fn step(code: u64, to: u64, from: u64, offset: u64, number: u32) -> u64 {
    code | to << 8 | from << 12 | offset << 16 | u64::from(number) << 32
}

fn parse(text: &str) -> Result<Rule, BadRule> {
    let bad = || BadRule(text.to_owned());
    let mut words = text.split_whitespace();
    let (Some(kind), Some(numbers), Some(access), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(bad());
    };
    let kind = match kind {
        "a" => None,
        "b" => Some(BLOCK),
        "c" => Some(CHARACTER),
        _ => return Err(bad()),
    };
    let number = |word: &str| match word {
        "*" => Ok(None),
        // The kernel compares signed numbers.
        word => word.parse::<u32>().ok().filter(|n| *n <= i32::MAX as u32).map(Some).ok_or_else(bad),
    };
    let (major, minor) = numbers.split_once(':').ok_or_else(bad)?;
    let bit = |letter| match letter {
        'm' => Ok(MAKE),
        'r' => Ok(READ),
        'w' => Ok(WRITE),
        _ => Err(bad()),
    };
    let access = access.chars().try_fold(0, |sum, letter| Ok(sum | bit(letter)?))?;
    Ok(Rule { kind, major: number(major)?, minor: number(minor)?, access })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As the kernel runs it.
    fn run(program: &[u64], kind: u32, access: u32, major: u32, minor: u32) -> u64 {
        let context = [access << 16 | kind, major, minor];
        let (mut registers, mut at) = ([0u64; 16], 0);
        loop {
            let step = program[at];
            let (code, to, from) = (step & 0xff, (step >> 8 & 15) as usize, (step >> 12 & 15) as usize);
            let (offset, number) = ((step >> 16 & 0xffff) as usize, step >> 32);
            at += 1;
            match code {
                LOAD_WORD => registers[to] = context[offset / 4].into(),
                MOVE => registers[to] = registers[from],
                MOVE_NUMBER => registers[to] = number,
                AND_NUMBER => registers[to] &= number,
                SHIFT_RIGHT => registers[to] >>= number,
                IF_NOT_NUMBER if registers[to] != number => at += offset,
                IF_NOT if registers[to] != registers[from] => at += offset,
                IF_NOT_NUMBER | IF_NOT => {}
                EXIT => return registers[0],
                other => panic!("{other:#x}"),
            }
        }
    }

    fn rules(all: &[&str]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_a_rule_allows_is_allowed_and_nothing_more() {
        let program = compile(&rules(&["c *:* m", "c 1:3 rwm", "b 8:* r", "c 136:* rw"])).unwrap();
        let rows = [
            (CHARACTER, MAKE, 9, 9, 1),
            (CHARACTER, MAKE | READ, 9, 9, 0),
            (BLOCK, MAKE, 9, 9, 0),
            (CHARACTER, READ | WRITE, 1, 3, 1),
            (CHARACTER, READ, 1, 4, 0),
            (BLOCK, READ, 8, 77, 1),
            (BLOCK, WRITE, 8, 77, 0),
            (BLOCK, READ | WRITE, 8, 0, 0),
            (CHARACTER, WRITE, 136, 5, 1),
        ];
        for (kind, access, major, minor, want) in rows {
            assert_eq!(run(&program, kind, access, major, minor), want, "{kind} {access} {major}:{minor}");
        }
        assert_eq!(run(&compile(&[]).unwrap(), CHARACTER, READ, 1, 3), 0);
        assert_eq!(run(&compile(&rules(&["a *:* rwm"])).unwrap(), BLOCK, ALL, 8, 0), 1);
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in
            ["", "c 1:3", "x 1:3 r", "c 1 r", "c 1:3 rx", "c 1:3 r more", "c -1:3 r", "c 4294967295:1 r"]
        {
            assert_eq!(compile(&rules(&[text])), Err(BadRule(text.into())));
        }
    }

    proptest! {
        #[test]
        fn the_program_and_the_rules_agree(
            rules in prop::collection::vec((0u32..3, prop::option::of(0u32..4), prop::option::of(0u32..4), 1u32..8), 0..6),
            kind in 1u32..3, access in 1u32..8, major in 0u32..4, minor in 0u32..4,
        ) {
            let text = |(k, ma, mi, a): &(u32, Option<u32>, Option<u32>, u32)| {
                let number = |n: &Option<u32>| n.map_or("*".to_owned(), |n| n.to_string());
                let letters: String = [(MAKE, 'm'), (READ, 'r'), (WRITE, 'w')].iter().filter(|(b, _)| a & b != 0).map(|(_, c)| *c).collect();
                format!("{} {}:{} {letters}", ["a", "b", "c"][*k as usize], number(ma), number(mi))
            };
            let is_allowed = rules.iter().any(|(k, ma, mi, a)| {
                (*k == 0 || *k == kind) && ma.is_none_or(|n| n == major) && mi.is_none_or(|n| n == minor) && access & !a == 0
            });
            let program = compile(&rules.iter().map(text).collect::<Vec<_>>()).unwrap();
            prop_assert_eq!(run(&program, kind, access, major, minor), u64::from(is_allowed));
        }
    }
}
