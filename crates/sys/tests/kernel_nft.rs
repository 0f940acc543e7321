//! nf_tables itself: what was written is what is there, what is refused is named, and others are noticed.
#![allow(clippy::unwrap_used)]

use fixture::{Netns, Tools};
use nft::{
    Chain, ChainType, Cmp, Dynset, Element, Expr, Family, Field, Hook, HookPoint, Message, Meta, Notice,
    Question, Reg, Rule, Set, TableId, Value, Values, Verdict, What,
};
use sys::nft::{Error, Monitor, Nftables, Sighting};

fn table(family: Family) -> TableId {
    TableId { family, name: "longshore-test".into() }
}

fn set(name: &str, key: Vec<Field>, values: Option<Values>) -> Set {
    Set { name: name.into(), key, values, is_interval: false, is_dynamic: false, size: None }
}

fn skipped() -> bool {
    match Netns::available() {
        Ok(()) => false,
        Err(why) => {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("skipped: {why}");
            }
            true
        }
    }
}

fn ask(nft: &mut Nftables, table: &TableId, question: &Question<'_>) -> Vec<What> {
    let mut heard = Vec::new();
    let hear = |heard: &mut Vec<What>, notice: Notice| {
        heard.push(notice.what);
        true
    };
    nft.ask(table, question, &mut heard, Vec::clear, hear).unwrap();
    heard
}

/// One of each: every kind of chain, set, element and expression that we write.
#[allow(clippy::type_complexity)]
fn everything(family: Family) -> (Vec<Chain>, Vec<Set>, Vec<(&'static str, Vec<Element>)>, Vec<Rule>) {
    let (ip, len) = if family == Family::Ip { (Field::Ipv4, 4) } else { (Field::Ipv6, 16) };
    let hook = |kind, point, priority| Some(Hook { kind, point, priority });
    let chains = vec![
        Chain { name: "target".into(), hook: None },
        Chain { name: "all".into(), hook: None },
        Chain { name: "pre".into(), hook: hook(ChainType::Nat, HookPoint::Prerouting, -100) },
        Chain { name: "in".into(), hook: hook(ChainType::Filter, HookPoint::Input, 7) },
    ];
    let address = || Some(Values::Fields(vec![ip, Field::Port]));
    let dynamic = Set {
        is_dynamic: true,
        size: Some(1000),
        ..set("dynamic", vec![ip, Field::Protocol], Some(Values::Fields(vec![Field::Priority])))
    };
    let ranges = Set { is_interval: true, ..set("ranges", vec![ip, Field::Port, ip], None) };
    let sets = vec![
        set("plain", vec![ip], None),
        set("joined", vec![ip, Field::Protocol, Field::Port], Some(Values::Fields(vec![Field::Priority]))),
        set("verdicts", vec![Field::Priority], Some(Values::Verdict)),
        set("endpoints", vec![Field::Mark], address()),
        dynamic,
        ranges,
    ];
    let a = |last: u8| {
        let mut bytes = vec![10; len];
        bytes[len - 1] = last;
        bytes
    };
    let joined = [a(1), vec![6, 0, 0, 0, 0, 80, 0, 0]].concat();
    let range = |last: u8| [a(1), vec![0, 80, 0, 0], a(last)].concat();
    let mut named = Element::with(joined, 7_u32.to_ne_bytes());
    named.comment = Some("ns/name:port".into());
    let verdict = |key: u32, verdict| Element {
        value: Some(Value::Verdict(verdict)),
        ..Element::new(key.to_ne_bytes())
    };
    let endpoint = [a(9), vec![31, 144, 0, 0]].concat();
    let elements = vec![
        ("plain", vec![Element::new(a(1)), Element::new(a(2))]),
        ("joined", vec![named]),
        ("verdicts", vec![verdict(1, Verdict::Drop), verdict(2, Verdict::Goto("target".into()))]),
        ("endpoints", vec![Element::with(1_u32.to_ne_bytes(), endpoint)]),
        ("ranges", vec![Element { end: Some(range(20).into()), ..Element::new(range(10)) }]),
    ];
    let rule = |exprs: Vec<Expr>| Rule { exprs, comment: None };
    let load = |into| Expr::Network { offset: 12, len: len as u32, into };
    let zero: Box<[u8]> = [0; 4].into();
    let word = |number: u32| -> Box<[u8]> { number.to_ne_bytes().into() };
    let dynset = |op, timeout| {
        let (set, data) = ("dynamic".into(), Some(Reg(8)));
        Expr::Dynset { op, set, key: Reg(0), data, timeout }
    };
    let rules = vec![
        Rule {
            exprs: vec![
                Expr::Meta { key: Meta::Mark, into: Reg(0) },
                Expr::Bitwise { from: Reg(0), into: Reg(0), mask: word(8), xor: word(8) },
                Expr::SetMeta { key: Meta::Mark, from: Reg(0) },
                Expr::Counter,
            ],
            comment: Some("a comment".into()),
        },
        rule(vec![
            Expr::Ct { key: nft::Ct::State, into: Reg(0) },
            Expr::Cmp { from: Reg(0), op: Cmp::NotEqual, data: zero },
            load(Reg(0)),
            Expr::Member { set: "plain".into(), key: Reg(0), is_inverted: true },
            Expr::Verdict(Verdict::Jump("target".into())),
        ]),
        rule(vec![
            Expr::Meta { key: Meta::InputName, into: Reg(0) },
            Expr::Cmp { from: Reg(0), op: Cmp::Equal, data: b"veth".as_slice().into() },
            load(Reg(0)),
            Expr::Meta { key: Meta::Protocol, into: Reg(0).after(len) },
            Expr::Transport { offset: 2, len: 2, into: Reg(0).after(len + 4) },
            Expr::Map { map: "joined".into(), key: Reg(0), into: Reg(0) },
            Expr::SetMeta { key: Meta::Priority, from: Reg(0) },
            Expr::Meta { key: Meta::Priority, into: Reg(0) },
            Expr::VerdictMap { map: "verdicts".into(), key: Reg(0) },
        ]),
        rule(vec![
            Expr::AddressType { of: nft::Address::Source, into: Reg(0) },
            Expr::Cmp { from: Reg(0), op: Cmp::Equal, data: word(2) },
            load(Reg(0)),
            Expr::Meta { key: Meta::Protocol, into: Reg(0).after(len) },
            Expr::Meta { key: Meta::Priority, into: Reg(8) },
            dynset(Dynset::Delete, None),
            dynset(Dynset::Update, Some(5000)),
            Expr::Random { modulus: 3, offset: 1, into: Reg(0) },
            Expr::Map { map: "endpoints".into(), key: Reg(0), into: Reg(0) },
            Expr::Dnat { family, address: Reg(0), port: Reg(0).after(len) },
        ]),
    ];
    (chains, sets, elements, rules)
}

fn write(family: Family) -> Vec<Message> {
    let (chains, sets, elements, rules) = everything(family);
    let mut messages = vec![Message::AddTable];
    messages.extend(sets.into_iter().map(Message::AddSet));
    messages.extend(chains.into_iter().map(Message::AddChain));
    messages.extend(elements.into_iter().map(|(set, e)| Message::AddElements(set.into(), e)));
    messages.extend(rules.into_iter().map(|rule| Message::AddRule("all".into(), rule)));
    let call = Expr::Verdict(Verdict::Jump("all".into()));
    messages.push(Message::AddRule("pre".into(), Rule { exprs: vec![call], comment: None }));
    let reject = Rule { exprs: vec![Expr::Reject { code: 3 }], comment: None };
    messages.push(Message::AddRule("in".into(), reject));
    messages
}

#[test]
fn the_kernel_tells_what_it_was_told() {
    if skipped() {
        return;
    }
    let ns = Netns::new().unwrap();
    for family in [Family::Ip, Family::Ip6] {
        let table = table(family);
        ns.within(|| {
            let mut nft = Nftables::open().unwrap();
            nft.commit(&table, &write(family)).unwrap();
            let (chains, sets, elements, rules) = everything(family);
            assert_eq!(ask(&mut nft, &table, &Question::Tables), [What::Table(0)]);
            let told = ask(&mut nft, &table, &Question::Chains);
            assert_eq!(
                told,
                chains
                    .into_iter()
                    .map(|chain| What::Chain(chain.name.clone(), Some(chain)))
                    .collect::<Vec<_>>()
            );
            let told = ask(&mut nft, &table, &Question::Sets);
            let wanted = sets.into_iter().map(|s| What::Set(s.name.clone(), Some(s)));
            assert_eq!(told, wanted.collect::<Vec<_>>());
            for (set, mut wanted) in elements {
                let mut told = Vec::new();
                for what in ask(&mut nft, &table, &Question::Elements(set)) {
                    let What::Elements(_, Some(elements)) = what else { panic!("{what:?}") };
                    told.extend(elements);
                }
                told.sort();
                wanted.sort();
                assert_eq!(told, wanted, "{set}");
                assert_eq!(told[0].comment, wanted[0].comment);
            }
            let told = ask(&mut nft, &table, &Question::Rules);
            let of_all: Vec<Rule> = told
                .into_iter()
                .filter_map(|what| match what {
                    What::Rule(chain, rule) if &*chain == "all" => Some(rule),
                    _ => None,
                })
                .collect();
            assert_eq!(of_all, rules);
        });
        if let Some(nft) = Tools::nft_from_env() {
            let out = ns.command(&nft.display().to_string()).args(["list", "ruleset"]).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            let text = String::from_utf8_lossy(&out.stdout);
            for part in
                ["comment \"ns/name:port\"", "vmap @verdicts", "policy accept", "comment \"a comment\""]
            {
                assert!(text.contains(part), "{part} is not in:\n{text}");
            }
        }
    }
}

#[test]
fn a_refused_transaction_names_its_step_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let ns = Netns::new().unwrap();
    ns.within(|| {
        let table = table(Family::Ip);
        let mut nft = Nftables::open().unwrap();
        let mut messages = write(Family::Ip);
        let at = messages.len();
        messages.push(Message::DeleteElements("plain".into(), vec![Element::new([9, 9, 9, 9])]));
        messages.push(Message::AddChain(Chain { name: "late".into(), hook: None }));
        match nft.commit(&table, &messages) {
            Err(Error::Refused { index, step, cause, .. }) => {
                assert_eq!((index, cause), (at, rustix::io::Errno::NOENT));
                assert_eq!(step, "deleting 1 elements from set plain");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(ask(&mut nft, &table, &Question::Tables), []);
        // The conversation goes on.
        nft.commit(&table, &write(Family::Ip)).unwrap();
        assert_eq!(ask(&mut nft, &table, &Question::Tables), [What::Table(0)]);
    });
}

#[test]
fn a_long_list_is_one_transaction() {
    if skipped() {
        return;
    }
    let ns = Netns::new().unwrap();
    ns.within(|| {
        let table = table(Family::Ip);
        let mut nft = Nftables::open().unwrap();
        let many: Vec<Element> = (0..50_000_u32).map(|i| Element::new(i.to_be_bytes())).collect();
        let messages = [
            Message::AddTable,
            Message::AddSet(set("plain", vec![Field::Ipv4], None)),
            Message::AddElements("plain".into(), many.clone()),
        ];
        nft.commit(&table, &messages).unwrap();
        let told = ask(&mut nft, &table, &Question::Elements("plain"));
        let count: usize = told
            .iter()
            .map(|what| match what {
                What::Elements(_, Some(elements)) => elements.len(),
                _ => 0,
            })
            .sum();
        assert_eq!(count, many.len());
        // A mistake in the last of many parts undoes all of them.
        let mut wrong = many;
        wrong.push(Element::new(50_001_u32.to_be_bytes()));
        let refused = nft.commit(&table, &[Message::DeleteElements("plain".into(), wrong)]);
        assert!(matches!(refused, Err(Error::Refused { index: 0, .. })), "{refused:?}");
    });
}

#[test]
fn others_are_noticed_and_we_are_not() {
    if skipped() {
        return;
    }
    let ns = Netns::new().unwrap();
    ns.within(|| {
        let table = table(Family::Ip);
        let (mut ours, mut theirs) = (Nftables::open().unwrap(), Nftables::open().unwrap());
        let mut monitor = Monitor::open().unwrap();
        let own = ours.port();
        let seen = |monitor: &mut Monitor| monitor.read(&table, own).unwrap();
        ours.commit(&table, &write(Family::Ip)).unwrap();
        assert_eq!(seen(&mut monitor), (Sighting::Nothing, false));
        let other = TableId { name: "another".into(), ..table.clone() };
        theirs.commit(&other, &[Message::AddTable]).unwrap();
        assert_eq!(seen(&mut monitor), (Sighting::Nothing, false));
        for foreign in [
            Message::AddElements("plain".into(), vec![Element::new([7, 7, 7, 7])]),
            Message::DeleteElements("plain".into(), vec![Element::new([7, 7, 7, 7])]),
            Message::FlushChain("in".into()),
            Message::DeleteTable,
        ] {
            theirs.commit(&table, std::slice::from_ref(&foreign)).unwrap();
            assert_eq!(seen(&mut monitor), (Sighting::Touched, false), "{foreign:?}");
            let author = monitor.author().unwrap();
            let thread = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            assert_eq!(author.name, thread.trim_end(), "{foreign:?}");
            assert!(author.pid > 0);
        }
        // More than anybody can hear is said to be lost.
        let many = |from: u32| (from..from + 60_000).map(|i| Element::new(i.to_be_bytes())).collect();
        let plain = Message::AddSet(set("plain", vec![Field::Ipv4], None));
        theirs.commit(&table, &[Message::AddTable, plain]).unwrap();
        for part in 0..3 {
            theirs.commit(&table, &[Message::AddElements("plain".into(), many(part * 60_000))]).unwrap();
        }
        assert_eq!(seen(&mut monitor).0, Sighting::Lost);
    });
}
