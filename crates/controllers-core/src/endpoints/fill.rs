//! Which slice holds which endpoint: what fits stays where it is, and as few slices as possible are written.

use std::collections::BTreeMap;

/// A slice that is there.
#[derive(Debug)]
pub(super) struct Existing<S, E> {
    pub(super) slice: S,
    pub(super) endpoints: Vec<E>,
    /// It has to be written in any case: its labels are not what they should be.
    pub(super) is_stale: bool,
}

/// What to do with the slices of one address family and one set of ports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filled<S, E> {
    pub(super) create: Vec<Vec<E>>,
    pub(super) update: Vec<(S, Vec<E>)>,
    pub(super) delete: Vec<S>,
    pub(super) unchanged: usize,
}

/// `wanted` by their identity: the same endpoint may have changed in everything else.
pub(super) fn fill<S, K: Ord, E: Clone + PartialEq>(
    existing: Vec<Existing<S, E>>,
    mut wanted: BTreeMap<K, E>,
    identity: impl Fn(&E) -> K,
    most: usize,
) -> Filled<S, E> {
    let (mut update, mut unchanged, mut delete) = (Vec::new(), Vec::new(), Vec::new());
    for Existing { slice, endpoints, is_stale } in existing {
        let before = endpoints.clone();
        let kept: Vec<E> =
            endpoints.iter().filter_map(|endpoint| wanted.remove(&identity(endpoint))).collect();
        if kept.is_empty() {
            delete.push(slice);
        } else if kept != before || is_stale {
            update.push((slice, kept));
        } else {
            unchanged.push((slice, kept));
        }
    }
    let mut left: Vec<E> = wanted.into_values().collect();
    // The fullest first, so that few slices are half empty.
    update.sort_by_key(|(_, endpoints)| std::cmp::Reverse(endpoints.len()));
    for (_, endpoints) in &mut update {
        let room = most.saturating_sub(endpoints.len()).min(left.len());
        endpoints.extend(left.drain(..room));
    }
    let mut create = Vec::new();
    while !left.is_empty() {
        let room = |endpoints: &Vec<E>| most.saturating_sub(endpoints.len());
        let fits = unchanged.iter().enumerate().filter(|(_, (_, endpoints))| room(endpoints) >= left.len());
        let tightest = fits.min_by_key(|(_, (_, endpoints))| room(endpoints)).map(|(at, _)| at);
        match tightest {
            Some(at) => {
                let (slice, mut endpoints) = unchanged.swap_remove(at);
                endpoints.append(&mut left);
                update.push((slice, endpoints));
            }
            None => create.push(left.drain(..most.min(left.len())).collect()),
        }
    }
    Filled { create, update, delete, unchanged: unchanged.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Endpoint = (u32, bool);

    fn slice(name: &'static str, endpoints: &[Endpoint]) -> Existing<&'static str, Endpoint> {
        Existing { slice: name, endpoints: endpoints.to_vec(), is_stale: false }
    }

    fn filled(
        existing: Vec<Existing<&'static str, Endpoint>>,
        wanted: &[Endpoint],
    ) -> Filled<&'static str, Endpoint> {
        let wanted = wanted.iter().map(|endpoint| (endpoint.0, *endpoint)).collect();
        fill(existing, wanted, |endpoint| endpoint.0, 3)
    }

    #[test]
    fn what_fits_stays_where_it_is() {
        let (on, off) = (|n| (n, true), |n| (n, false));
        let all = filled(vec![slice("a", &[on(1), on(2)])], &[on(1), on(2)]);
        assert_eq!(all, Filled { create: vec![], update: vec![], delete: vec![], unchanged: 1 });
        let changed = filled(vec![slice("a", &[on(1), on(2)])], &[on(1), off(2)]);
        assert_eq!(changed.update, [("a", vec![on(1), off(2)])]);
        let gone = filled(vec![slice("a", &[on(1)]), slice("b", &[on(2)])], &[on(2)]);
        assert_eq!((gone.delete, gone.unchanged), (vec!["a"], 1));
    }

    #[test]
    fn a_slice_that_is_written_anyway_is_filled_first_then_the_one_that_fits_best() {
        let on = |n| (n, true);
        let existing = vec![
            slice("full", &[on(1), on(2), on(3)]),
            slice("changed", &[on(4), on(5)]),
            slice("free", &[on(6)]),
        ];
        let plan = filled(existing, &[on(1), on(2), on(3), on(4), on(6), on(7), on(8)]);
        assert_eq!((plan.update, plan.unchanged), (vec![("changed", vec![on(4), on(7), on(8)])], 2));
        let existing = vec![slice("one", &[on(1)]), slice("two", &[on(2), on(3)])];
        let plan = filled(existing, &[on(1), on(2), on(3), on(4)]);
        assert_eq!(plan.update, [("two", vec![on(2), on(3), on(4)])]);
        let plan = filled(vec![], &[on(1), on(2), on(3), on(4)]);
        assert_eq!(plan.create, [vec![on(1), on(2), on(3)], vec![on(4)]]);
    }

    #[test]
    fn no_endpoint_is_lost_or_stands_twice() {
        let wanted: Vec<Endpoint> = (0..40).map(|n| (n, n % 2 == 0)).collect();
        let existing = vec![
            slice("a", &[(1, true), (99, true)]),
            slice("b", &[(2, true), (1, true)]),
            slice("c", &[(50, true)]),
        ];
        let plan = filled(existing, &wanted);
        let mut all: Vec<Endpoint> = plan.create.concat();
        all.extend(plan.update.into_iter().flat_map(|(_, endpoints)| endpoints));
        all.sort_unstable();
        assert_eq!(all, wanted);
        assert_eq!(plan.delete, ["c"]);
    }
}
