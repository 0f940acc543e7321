//! The rows are upstream's: hints as `01+` (nodes 0 and 1, preferred), `nil-` (no nodes), a provider's resources apart by `;`.

use super::*;

type Row = (&'static [&'static str], &'static str);

const COMMON: [Row; 9] = [
    (&["0+", "0+"], "0+"),
    (&["1+", "1+"], "1+"),
    (&["", "0+"], "0+"),
    (&["", "1+"], "1+"),
    (&["0+ 1+", "0+"], "0+"),
    (&["0+ 1+", "1+"], "1+"),
    (&["0+ 1+", "0+ 01-"], "0+"),
    (&["1+ 01-", "0+ 1+ 01-"], "1+"),
    (&["1+ 01-;0+ 1+ 01-"], "1+"),
];

const BEST_EFFORT: [Row; 17] = [
    (&["01+ 02+", "01+ 02+"], "01+"),
    (&[], "all+"),
    (&[""], "all+"),
    (&["any"], "all+"),
    (&["none"], "all-"),
    (&["nil+"], "all+"),
    (&["nil-"], "all-"),
    (&["0+", "1+"], "all-"),
    (&["0+", "0-"], "0-"),
    (&["1+", "1-"], "1-"),
    (&["0+", "01+"], "0-"),
    (&["0+ 1+", "01-"], "0-"),
    (&["1+", "01+"], "1-"),
    (&["0123- 01-", "01-"], "01-"),
    (&["0123- 01-", "03-"], "03-"),
    (&["0123- 01-", "12-"], "12-"),
    (&["0123- 01-", "23-"], "23-"),
];

const NARROWEST: [Row; 2] = [(&["0123- 01-", "12- 23-"], "12-"), (&["0123- 01-", "123- 12- 13- 23-"], "12-")];

const CLOSEST: [Row; 4] = [
    (&["04+ 02+", "04+ 02+"], "02+"),
    (&["4+ 02+", "4+ 02+"], "4+"),
    (&["0123- 01-", "12- 23-"], "23-"),
    (&["0123- 01-", "123- 12- 13- 23-"], "23-"),
];

const SINGLE: [Row; 12] = [
    (&[], "nil+"),
    (&[""], "nil+"),
    (&["any"], "nil+"),
    (&["none"], "nil-"),
    (&["nil+"], "nil+"),
    (&["nil-"], "nil-"),
    (&["0+", "1+"], "nil-"),
    (&["0+", "0-"], "nil-"),
    (&["1+", "1-"], "nil-"),
    (&["0+ 1+", "01-"], "nil-"),
    (&["01+;0+ 1+ 01-"], "nil-"),
    (&["0+ 1+ 01-", ""], "0+"),
];

fn hint(text: &str, all: &[u32]) -> Hint {
    let (nodes, sign) = text.split_at(text.len() - 1);
    let nodes = match nodes {
        "nil" => None,
        "all" => Some(NumaMask::new(all.iter().copied())),
        digits => Some(NumaMask::new(digits.chars().filter_map(|d| d.to_digit(10)))),
    };
    Hint { nodes, preferred: sign == "+" }
}

fn wishes(providers: &[&str]) -> Vec<BTreeMap<String, Wish>> {
    let wish = |text: &str| match text {
        "any" => Wish::Any,
        "none" => Wish::OneOf(Vec::new()),
        hints => Wish::OneOf(hints.split(' ').map(|h| hint(h, &[])).collect()),
    };
    let provider = |text: &&str| {
        let resources = text.split(';').filter(|t| !t.is_empty()).enumerate();
        resources.map(|(i, t)| (format!("resource{i}"), wish(t))).collect()
    };
    providers.iter().map(provider).collect()
}

/// Eight nodes in pairs, as far from each other as upstream's are.
fn eight_nodes() -> Vec<NumaNode> {
    const FAR: [[u64; 8]; 8] = [
        [10, 11, 12, 12, 30, 30, 30, 30],
        [11, 10, 12, 12, 30, 30, 30, 30],
        [12, 12, 10, 11, 30, 30, 30, 30],
        [12, 12, 11, 10, 30, 30, 30, 30],
        [30, 30, 30, 30, 10, 11, 12, 12],
        [30, 30, 30, 30, 11, 10, 12, 12],
        [30, 30, 30, 30, 12, 12, 10, 11],
        [30, 30, 30, 30, 12, 12, 13, 10],
    ];
    (0u32..8)
        .zip(FAR)
        .map(|(id, far)| NumaNode { id, distances: far.to_vec(), ..NumaNode::default() })
        .collect()
}

fn policy(name: &str, nodes: usize, options: &[(&str, &str)]) -> Result<Policy, String> {
    let options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Policy::new(name, "container", &options, &eight_nodes()[..nodes])
}

fn check(policy: &Policy, rows: &[Row]) {
    for (providers, want) in rows {
        let (got, may) = policy.merge(&wishes(providers));
        let want = hint(want, &policy.nodes);
        assert_eq!(got, want, "{:?}: {providers:?}", policy.kind);
        assert_eq!(may, policy.kind == PolicyName::BestEffort || want.preferred, "{providers:?}");
    }
}

#[test]
fn hints_become_one_as_upstream_makes_them() {
    for name in ["best-effort", "restricted"] {
        let policy = policy(name, 4, &[]).unwrap_or_else(|e| panic!("{e}"));
        [&COMMON[..], &BEST_EFFORT, &NARROWEST].iter().for_each(|rows| check(&policy, rows));
    }
    let single = policy("single-numa-node", 4, &[]).unwrap_or_else(|e| panic!("{e}"));
    [&COMMON[..], &SINGLE].iter().for_each(|rows| check(&single, rows));
}

#[test]
fn near_nodes_are_preferred_if_asked_for() {
    for name in ["best-effort", "restricted"] {
        let policy = policy(name, 8, &[("prefer-closest-numa-nodes", "true")]);
        let policy = policy.unwrap_or_else(|e| panic!("{e}"));
        [&COMMON[..], &BEST_EFFORT, &CLOSEST].iter().for_each(|rows| check(&policy, rows));
    }
}

#[test]
fn what_cannot_be_is_refused_in_upstreams_words() {
    let told = |made: Result<Policy, String>| made.err().unwrap_or_default();
    assert_eq!(told(policy("tight", 4, &[])), "unknown policy: \"tight\"");
    assert_eq!(
        told(policy("restricted", 4, &[("fast", "true")])),
        "unknown Topology Manager Policy option: \"fast\""
    );
    assert_eq!(
        told(policy("restricted", 4, &[("max-allowable-numa-nodes", "4")])),
        "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"
    );
    let mut nine = eight_nodes();
    nine.push(NumaNode { id: 8, ..NumaNode::default() });
    let of_nine = |options: &BTreeMap<String, String>| Policy::new("restricted", "pod", options, &nine);
    assert_eq!(told(of_nine(&BTreeMap::new())), "unsupported on machines with more than 8 NUMA Nodes");
    let more = BTreeMap::from([("max-allowable-numa-nodes".to_owned(), "9".to_owned())]);
    assert!(of_nine(&more).is_ok());
    assert!(Policy::new("none", "", &BTreeMap::new(), &nine).is_ok(), "nobody asks for sets of nodes");
}

#[test]
fn eight_nodes_and_many_resources_are_no_burden() {
    let nodes: Vec<u32> = (0..8).collect();
    let hints =
        NumaMask::subsets(&nodes).into_iter().map(|m| Hint { nodes: Some(m), preferred: m.count() == 2 });
    let wish = Wish::OneOf(hints.collect());
    let wishes: Vec<_> = (0..6).map(|i| BTreeMap::from([(format!("r{i}"), wish.clone())])).collect();
    let policy = policy("restricted", 8, &[]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(policy.merge(&wishes), (Hint::new([0, 1], true), true));
}

mod properties {
    use proptest::prelude::*;

    use super::super::*;

    fn hints() -> impl Strategy<Value = Vec<Hint>> {
        let hint = (0u64..16, any::<bool>()).prop_map(|(bits, preferred)| match bits {
            0 => Hint { nodes: None, preferred },
            bits => Hint::new((0..4).filter(|n| bits & (1 << n) != 0), preferred),
        });
        proptest::collection::vec(hint, 0..5)
    }

    proptest! {
        #[test]
        fn no_answer_contradicts_every_hint_of_a_resource(all in proptest::collection::vec(hints(), 0..4)) {
            let nodes: Vec<NumaNode> =
                (0..4).map(|id| NumaNode { id, distances: vec![10; 4], ..NumaNode::default() }).collect();
            let wishes: Vec<BTreeMap<String, Wish>> = all
                .iter()
                .map(|hints| BTreeMap::from([("r".to_owned(), Wish::OneOf(hints.clone()))]))
                .collect();
            for name in ["best-effort", "restricted", "single-numa-node"] {
                let policy = Policy::new(name, "pod", &BTreeMap::new(), &nodes).unwrap_or_default();
                let (answer, may) = policy.merge(&wishes);
                if name != "best-effort" {
                    prop_assert_eq!(may, answer.preferred);
                }
                if !answer.preferred {
                    continue;
                }
                // A preferred answer is, for each resource, exactly what one of its preferred hints says.
                for hints in &all {
                    let agrees = |h: &Hint| h.preferred && h.nodes.is_none_or(|n| Some(n) == answer.nodes || answer.nodes.is_none() && n.count() == 4);
                    prop_assert!(hints.iter().any(agrees), "{:?} and {:?}", answer, hints);
                }
                if name == "single-numa-node" {
                    prop_assert!(answer.nodes.is_none_or(|n| n.count() == 1));
                }
            }
        }
    }
}
