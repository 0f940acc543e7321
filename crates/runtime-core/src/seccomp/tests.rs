#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;

fn errno(errno: u32) -> u32 {
    0x0005_0000 | errno
}

/// Runs a program as the kernel does. The number of steps comes along.
fn run(program: &[u64], arch: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
    let mut data = vec![number, arch, 0, 0];
    data.extend(arguments.iter().flat_map(|a| [*a as u32, (*a >> 32) as u32]));
    let (mut at, mut accumulator, mut steps) = (0, 0u32, 0);
    loop {
        let word = program[at];
        let (code, yes, no, value) =
            (word as u16, (word >> 16) as u8 as usize, (word >> 24) as u8 as usize, (word >> 32) as u32);
        at += 1;
        steps += 1;
        let jump = |holds: bool| if holds { yes } else { no };
        match code {
            0x20 => accumulator = data[value as usize / 4],
            0x05 => at += value as usize,
            0x15 => at += jump(accumulator == value),
            0x25 => at += jump(accumulator > value),
            0x35 => at += jump(accumulator >= value),
            0x54 => accumulator &= value,
            0x06 => return (value, steps),
            other => panic!("the kernel does not know {other:x}"),
        }
    }
}

/// What the profile says, read the slow way.
fn judge(profile: &Profile, arch: Arch, number: u32, arguments: [u64; 6]) -> Option<Action> {
    let rules = profile.rules.iter();
    let mut of_call =
        rules.filter(|rule| rule.names.iter().any(|n| arch.number(n) == Some(number))).peekable();
    of_call.peek()?;
    let holds = |test: &Test| {
        let argument = arguments[usize::from(test.argument)];
        match test.compare {
            Compare::NotEqual => argument != test.value,
            Compare::Less => argument < test.value,
            Compare::LessOrEqual => argument <= test.value,
            Compare::Equal => argument == test.value,
            Compare::GreaterOrEqual => argument >= test.value,
            Compare::Greater => argument > test.value,
            Compare::Masked(mask) => argument & mask == test.value,
        }
    };
    Some(of_call.find(|rule| rule.tests.iter().all(holds)).map_or(profile.default, |rule| rule.action))
}

fn value(action: Action) -> u32 {
    match action {
        Action::Allow => ALLOW,
        Action::Errno(n) => errno(n.into()),
        Action::KillProcess => KILL,
        Action::KillThread => 0,
        Action::Trap => 0x0003_0000,
        Action::Log => 0x7ffc_0000,
    }
}

#[test]
fn the_table_of_numbers_is_sorted_and_right() {
    assert!(numbers::TABLE.windows(2).all(|w| w[0].0 < w[1].0));
    let rows = [
        ("read", Some(0), Some(3), Some(63)),
        ("openat", Some(257), Some(295), Some(56)),
        ("open", Some(2), Some(5), None),
        ("newfstatat", Some(262), None, Some(79)),
        ("clone3", Some(435), Some(435), Some(435)),
        ("nothing", None, None, None),
    ];
    for (name, x86_64, i386, aarch64) in rows {
        let got = [Arch::X86_64, Arch::I386, Arch::Aarch64].map(|arch| arch.number(name));
        assert_eq!(got, [x86_64, i386, aarch64], "{name}");
    }
}

#[test]
fn the_default_profile_allows_what_programs_need_and_refuses_what_they_do_not() {
    let profile = default_profile(Arch::X86_64, 0xa804_25fb);
    let program = compile(&profile).unwrap();
    let call = |name: &str, first: u64| {
        let number = Arch::X86_64.number(name).unwrap();
        run(&program, Arch::X86_64.audit(), number, [first, 0, 0, 0, 0, 0]).0
    };
    for name in [
        "read",
        "openat",
        "execve",
        "futex",
        "epoll_wait",
        "setuid",
        "capset",
        "chroot",
        "ptrace",
        "close_range",
    ] {
        assert_eq!(call(name, 0), ALLOW, "{name}");
    }
    for name in [
        "mount",
        "kexec_load",
        "init_module",
        "bpf",
        "setns",
        "unshare",
        "reboot",
        "sethostname",
        "add_key",
        "keyctl",
        "io_uring_setup",
        "userfaultfd",
    ] {
        assert_eq!(call(name, 0), errno(1), "{name}");
    }
    assert_eq!(call("clone", 0x11), ALLOW);
    assert_eq!(call("clone", 0x1000_0000), errno(1), "a new user namespace");
    assert_eq!(call("clone3", 0), errno(38), "whose arguments cannot be seen: programs fall back to clone");
    assert_eq!(call("socket", 2), ALLOW);
    assert_eq!(call("socket", 40), errno(1), "vsock leads to the host of a virtual machine");
    assert_eq!(call("personality", 0x8), ALLOW);
    assert_eq!(call("personality", 0x40_0000), errno(1));
    let of_another = run(&program, Arch::Aarch64.audit(), 0, [0; 6]).0;
    assert_eq!(of_another, KILL);
    assert_eq!(run(&program, Arch::X86_64.audit(), 9_999, [0; 6]).0, errno(38));
}

#[test]
fn capabilities_open_what_they_are_for() {
    let sys_admin = 1 << 21;
    let program = compile(&default_profile(Arch::X86_64, sys_admin)).unwrap();
    for name in ["mount", "setns", "unshare", "sethostname", "clone3", "bpf"] {
        let number = Arch::X86_64.number(name).unwrap();
        assert_eq!(run(&program, Arch::X86_64.audit(), number, [0; 6]).0, ALLOW, "{name}");
    }
}

#[test]
fn a_call_is_judged_in_a_few_steps() {
    let program = compile(&default_profile(Arch::X86_64, 0xa804_25fb)).unwrap();
    assert!(program.len() < 500, "{} instructions", program.len());
    for number in 0..470 {
        let (_, steps) = run(&program, Arch::X86_64.audit(), number, [0; 6]);
        assert!(steps <= 24, "{number}: {steps}");
    }
}

#[test]
fn profiles_are_read_as_oci_writes_them() {
    let text = r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_MIPS"],
        "syscalls": [{"names": ["sethostname"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5},
                     {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 6, "valueTwo": 4, "op": "SCMP_CMP_MASKED_EQ"}]}]}"#;
    let profile = parse(text, Arch::X86_64).unwrap();
    assert_eq!(profile.default, Action::Errno(38));
    assert_eq!(profile.architectures, BTreeSet::from([Arch::X86_64]));
    let program = compile(&profile).unwrap();
    let call = |number, first| run(&program, Arch::X86_64.audit(), number, [first, 0, 0, 0, 0, 0]).0;
    assert_eq!(call(170, 0), errno(5));
    assert_eq!((call(56, 4), call(56, 5), call(56, 6)), (ALLOW, ALLOW, errno(38)));
}

#[test]
fn two_tests_of_one_argument_are_a_choice_between_them() {
    let one = |value: u64| format!(r#"{{"index": 0, "value": {value}, "op": "SCMP_CMP_EQ"}}"#);
    let many: Vec<String> = (0..100).map(one).collect();
    let text = format!(
        r#"{{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{{"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{}]}}]}}"#,
        many.join(",")
    );
    let program = compile(&parse(&text, Arch::X86_64).unwrap()).unwrap();
    let call = |first| run(&program, Arch::X86_64.audit(), 135, [first, 0, 0, 0, 0, 0]).0;
    assert_eq!((call(0), call(99), call(100)), (ALLOW, ALLOW, errno(1)));
}

#[test]
fn a_rule_with_more_tests_than_arguments_is_refused() {
    let test = Test { argument: 0, compare: Compare::Equal, value: 1 };
    let rule = Rule { names: vec!["read".into()], action: Action::Allow, tests: vec![test; 7] };
    let profile = Profile {
        default: Action::Errno(1),
        rules: vec![rule],
        architectures: BTreeSet::from([Arch::X86_64]),
        flags: 0,
    };
    assert!(compile(&profile).is_err());
}

#[test]
fn what_is_not_understood_is_named() {
    let rows = [
        ("{", "the seccomp profile is not understood"),
        (r#"{"defaultAction": "SCMP_ACT_MAYBE"}"#, "unknown action \"SCMP_ACT_MAYBE\""),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["X"]}"#,
            "the seccomp profile has the unknown flag \"X\"",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": [], "action": "SCMP_ACT_LOG", "args": [{"index": 6, "op": "SCMP_CMP_EQ"}]}]}"#,
            "tests argument 6",
        ),
    ];
    for (text, want) in rows {
        let error = parse(text, Arch::X86_64).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

fn any_test() -> impl Strategy<Value = Test> {
    let compare = prop_oneof![
        Just(Compare::NotEqual),
        Just(Compare::Less),
        Just(Compare::LessOrEqual),
        Just(Compare::Equal),
        Just(Compare::GreaterOrEqual),
        Just(Compare::Greater),
        any_value().prop_map(Compare::Masked),
    ];
    (0u8..6, compare, any_value()).prop_map(|(argument, compare, value)| Test { argument, compare, value })
}

/// Values near each other, in either word, so that every branch is taken.
fn any_value() -> impl Strategy<Value = u64> {
    (0u64..3, 0u64..3).prop_map(|(high, low)| high << 32 | low)
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let action = prop_oneof![Just(Action::Allow), (1u16..5).prop_map(Action::Errno), Just(Action::Log)];
    let name = (0..numbers::TABLE.len()).prop_map(|i| numbers::TABLE[i].0.to_owned());
    let rule = (prop::collection::vec(name, 0..12), action.clone(), prop::collection::vec(any_test(), 0..3))
        .prop_map(|(names, action, tests)| Rule { names, action, tests });
    (action, prop::collection::vec(rule, 0..6)).prop_map(|(default, rules)| Profile {
        default,
        rules,
        architectures: BTreeSet::from([Arch::X86_64, Arch::I386]),
        flags: 0,
    })
}

proptest! {
    /// The program says what the rules say, for every call and any arguments.
    #[test]
    fn the_tree_is_the_profile(profile in any_profile(), arguments in prop::array::uniform6(any_value())) {
        // Many calls with many tests each may be more than the kernel takes.
        let Ok(program) = compile(&profile) else { return Ok(()) };
        for arch in [Arch::X86_64, Arch::I386] {
            let calls = profile.rules.iter().flat_map(|r| &r.names).filter_map(|n| arch.number(n));
            let known = calls.clone().max();
            // Each call that is named, those beside it, and the ends.
            let near = calls.flat_map(|n| [n.saturating_sub(1), n, n + 1]).chain([0, 480]);
            for number in near.collect::<BTreeSet<u32>>() {
                let newer = known.is_some_and(|k| number > k) && matches!(profile.default, Action::Errno(_));
                let otherwise = if newer { Action::Errno(38) } else { profile.default };
                let want = judge(&profile, arch, number, arguments).unwrap_or(otherwise);
                let got = run(&program, arch.audit(), number, arguments).0;
                prop_assert_eq!(got, value(want), "{:?} {}", arch, number);
            }
        }
    }

    #[test]
    fn any_text_is_survived(text in ".{0,200}") {
        let _ = parse(&text, Arch::X86_64);
    }
}
