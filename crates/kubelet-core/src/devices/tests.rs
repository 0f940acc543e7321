use super::*;
use crate::topology::mask::Hint;
use crate::topology::wants::ContainerWant;

const DEV: &str = "vendor.com/device";

fn device(nodes: &[i64]) -> Device {
    Device { healthy: true, nodes: nodes.to_vec() }
}

/// Four devices, two on each of two nodes.
fn books() -> DeviceBooks {
    let mut books = DeviceBooks::new(vec![0, 1], Entries::new(), []);
    let on = |(i, node): (usize, i64)| (format!("d{i}"), device(&[node]));
    books.heard(DEV, [0, 0, 1, 1].into_iter().enumerate().map(on).collect());
    books
}

fn ids(all: &[&str]) -> Ids {
    all.iter().map(|id| (*id).to_owned()).collect()
}

fn take(
    books: &mut DeviceBooks,
    uid: &str,
    container: &str,
    count: usize,
    hint: Hint,
    preferred: &[&str],
) -> Result<Ids, String> {
    let Some(plan) = books.plan(uid, container, DEV, count, hint, false)? else { return Ok(Ids::new()) };
    let chosen = books.choose(DEV, &plan, &ids(preferred))?;
    books.insert(uid, container, DEV, &chosen, b"answer".to_vec());
    Ok(chosen)
}

#[test]
fn devices_come_from_the_hints_nodes_and_the_plugin_may_choose_among_them() {
    let near = Hint::new([1], true);
    assert_eq!(take(&mut books(), "p", "c", 2, near, &[]), Ok(ids(&["d2", "d3"])));
    assert_eq!(take(&mut books(), "p", "c", 1, near, &["d3"]), Ok(ids(&["d3"])));
    assert_eq!(take(&mut books(), "p", "c", 1, near, &["d0"]), Ok(ids(&["d2"])), "d0 is not near");
    assert_eq!(take(&mut books(), "p", "c", 3, near, &["d1"]), Ok(ids(&["d1", "d2", "d3"])));
    assert_eq!(take(&mut books(), "p", "c", 2, Hint::default(), &["d3", "d1"]), Ok(ids(&["d1", "d3"])));
}

#[test]
fn the_plugin_is_asked_only_where_there_is_a_choice() {
    let plan =
        |count, hint| books().plan("p", "c", DEV, count, hint, false).ok().flatten().unwrap_or_default();
    assert_eq!(plan(2, Hint::new([1], true)).ask, None);
    let ask = plan(3, Hint::new([1], true)).ask.unwrap_or_default();
    assert_eq!((ask.must_include, ask.size), (ids(&["d2", "d3"]), 3));
    assert_eq!(ask.available.len(), 4);
}

#[test]
fn what_cannot_be_given_is_refused_in_upstreams_words() {
    let mut books = books();
    let told = |books: &DeviceBooks, resource: &str, count| {
        books.plan("x", "c", resource, count, Hint::default(), false).err().unwrap_or_default()
    };
    assert_eq!(told(&books, "vendor.com/none", 1), "cannot allocate unregistered device vendor.com/none");
    assert_eq!(
        told(&books, DEV, 5),
        "requested number of devices unavailable for vendor.com/device. Requested: 5, Available: 4"
    );
    assert!(take(&mut books, "p", "c", 3, Hint::default(), &[]).is_ok());
    let changed = books.plan("p", "c", DEV, 2, Hint::default(), false).err().unwrap_or_default();
    assert_eq!(
        changed,
        "pod \"p\" container \"c\" changed request for resource \"vendor.com/device\" from 3 to 2"
    );
    assert_eq!(books.plan("p", "c", DEV, 3, Hint::default(), false), Ok(None), "it has them");
    books.disconnected(DEV, Mono::default());
    assert_eq!(
        told(&books, DEV, 1),
        "no healthy devices present; cannot allocate unhealthy devices vendor.com/device"
    );
    assert_eq!(books.plan("p", "c", DEV, 3, Hint::default(), true), Ok(None), "it runs");
    books.heard(DEV, [("d3".to_owned(), device(&[1]))].into());
    let again = books.plan("p", "c", DEV, 3, Hint::default(), false).err().unwrap_or_default();
    assert!(again.starts_with("previously allocated devices are no longer healthy"), "{again}");
}

#[test]
fn a_plugin_that_is_gone_leaves_its_devices_for_a_while() {
    let (mut books, start) = (books(), Mono::default());
    let counts = |books: &mut DeviceBooks, now| {
        let (counts, gone) = books.counts(now);
        (counts.capacity.get(DEV).copied(), counts.allocatable.get(DEV).copied(), gone)
    };
    assert_eq!(counts(&mut books, start), (Some(4), Some(4), vec![]));
    books.heard(DEV, [("a".to_owned(), device(&[])), ("b".to_owned(), Device::default())].into());
    assert_eq!(counts(&mut books, start), (Some(2), Some(1), vec![]));
    books.disconnected(DEV, start);
    assert_eq!(counts(&mut books, start + GRACE), (Some(2), Some(0), vec![]));
    let later = start + GRACE + Duration::from_secs(1);
    assert_eq!(counts(&mut books, later), (None, None, vec![DEV.to_owned()]));
}

#[test]
fn pods_hear_of_the_health_of_their_devices() {
    let mut books = books();
    assert_eq!(take(&mut books, "p", "c", 1, Hint::new([0], true), &["d1"]), Ok(ids(&["d1"])));
    let now = |healthy: bool| Devices::from([("d1".to_owned(), Device { healthy, nodes: vec![0] })]);
    assert_eq!(books.heard(DEV, now(false)), BTreeSet::from(["p".to_owned()]));
    assert!(!books.is_healthy(DEV, "d1"));
    assert_eq!(books.heard(DEV, now(false)), BTreeSet::new(), "no news");
}

#[test]
fn what_an_init_container_had_its_pod_uses_again() {
    let mut books = books();
    let container =
        |name: &str, lasting| ContainerWant { name: name.into(), lasting, ..ContainerWant::default() };
    let pod = PodWant {
        uid: "p".into(),
        containers: vec![
            container("i", Lasting::Init),
            container("s", Lasting::Sidecar),
            container("a", Lasting::Regular),
        ],
    };
    assert_eq!(take(&mut books, "p", "i", 3, Hint::default(), &[]).map(|i| i.len()), Ok(3));
    books.remember(&pod, "i");
    assert_eq!(take(&mut books, "p", "s", 2, Hint::default(), &[]), Ok(ids(&["d0", "d1"])));
    books.remember(&pod, "s");
    assert_eq!(take(&mut books, "p", "a", 2, Hint::default(), &[]), Ok(ids(&["d2", "d3"])));
    books.keep_only(|_| false);
    assert_eq!(books.available(DEV).len(), 4);
}

#[test]
fn hints_name_the_nodes_with_enough_devices() {
    use crate::topology::admit::Provider;
    use crate::topology::mask::Wish;
    let mut books = books();
    let wish = |books: &DeviceBooks, count: u64| {
        let container = ContainerWant {
            name: "c".into(),
            devices: [(DEV.to_owned(), count)].into(),
            ..ContainerWant::default()
        };
        let pod = PodWant { uid: "new".into(), containers: vec![container.clone()] };
        assert_eq!(books.hints(&pod, &container), books.pod_hints(&pod));
        books.hints(&pod, &container).remove(DEV)
    };
    let all = |hints: &[(&[u32], bool)]| {
        Some(Wish::OneOf(hints.iter().map(|(n, p)| Hint::new(n.iter().copied(), *p)).collect()))
    };
    assert_eq!(wish(&books, 2), all(&[(&[0], true), (&[1], true), (&[0, 1], false)]));
    assert_eq!(wish(&books, 3), all(&[(&[0, 1], true)]));
    assert_eq!(wish(&books, 5), all(&[]));
    assert!(take(&mut books, "p", "c", 1, Hint::new([0], true), &[]).is_ok());
    assert_eq!(wish(&books, 2), all(&[(&[1], true), (&[0, 1], false)]));
    books.heard(DEV, [("x".to_owned(), device(&[]))].into());
    assert_eq!(wish(&books, 1), Some(Wish::Any), "nothing is said about nodes");
}
