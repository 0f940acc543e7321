use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::*;
use crate::request::Options;

fn client() -> Client {
    let dial: crate::Dial = Arc::new(|| Err(std::io::ErrorKind::ConnectionRefused.into()));
    Client::over(dial, Options::default())
}

fn reflector<R: Reader>(reader: R) -> Reflector<R> {
    Reflector::new(client(), Resource::new("/api/v1/configmaps"), Rng::new(1), reader)
}

/// `name uid revision`
fn object(text: &str) -> Box<RawValue> {
    let mut words = text.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let meta = json!({"namespace": "n", "name": word(), "uid": word(), "resourceVersion": word()});
    let data = match word() {
        "" => json!({"k": "v"}),
        _ => json!("no map"),
    };
    RawValue::from_string(json!({"metadata": meta, "data": data}).to_string()).unwrap()
}

fn list(items: &[&str]) -> Vec<Piece> {
    let items = items.iter().map(|item| Piece::Item(object(item)));
    [Piece::Begin].into_iter().chain(items).chain([Piece::End]).collect()
}

/// What is told, in short.
fn told<R: Reader>(reflector: &mut Reflector<R>, pieces: Vec<Piece>) -> Vec<String> {
    pieces.into_iter().for_each(|piece| reflector.take(piece));
    let short = |change: Change<R::Object, R::Kept>| match change {
        Change::Added { key, .. } => format!("+{}", key.name),
        Change::Updated { key, .. } => format!("~{}", key.name),
        Change::Deleted { key, last, .. } => {
            format!("-{}{}", key.name, if last.is_some() { " told" } else { "" })
        }
        Change::Synced => "synced".to_owned(),
        Change::Unnamed => "unnamed".to_owned(),
    };
    reflector.pending.drain(..).map(short).collect()
}

#[test]
fn what_is_told_is_the_same_by_list_and_by_watch() {
    let applied = |text| vec![Piece::Applied(object(text))];
    let deleted = |text| vec![Piece::Deleted(object(text))];
    let mut broken = list(&["a u1 1"]);
    broken.pop();
    broken.extend(list(&["b u2 2"]));
    type Case = (&'static str, Vec<Vec<Piece>>, &'static [&'static str]);
    let cases: Vec<Case> = vec![
        ("a first list", vec![list(&["a u1 1", "b u2 2"])], &["+a", "+b", "synced"]),
        (
            "a watch",
            vec![list(&["a u1 1"]), applied("a u1 3"), applied("b u2 4")],
            &["+a", "synced", "~a", "+b"],
        ),
        ("a deletion", vec![list(&["a u1 1"]), deleted("a u1 5")], &["+a", "synced", "-a told"]),
        ("a deletion of who was not known", vec![list(&[]), deleted("a u1 5")], &["synced"]),
        (
            "gone between two lists",
            vec![list(&["a u1 1", "b u2 2"]), list(&["b u2 2"])],
            &["+a", "+b", "synced", "-a", "synced"],
        ),
        (
            "changed between two lists",
            vec![list(&["a u1 1"]), list(&["a u1 9"])],
            &["+a", "synced", "~a", "synced"],
        ),
        (
            "another of the name, by list",
            vec![list(&["a u1 1"]), list(&["a u2 9"])],
            &["+a", "synced", "-a", "+a", "synced"],
        ),
        (
            "another of the name, by watch",
            vec![list(&["a u1 1"]), applied("a u2 9")],
            &["+a", "synced", "-a", "+a"],
        ),
        (
            "told between two lists",
            vec![list(&[]), applied("a u1 3"), list(&["a u1 3"])],
            &["synced", "+a", "synced"],
        ),
        ("a list that broke off", vec![broken], &["+a", "+b", "-a", "synced"]),
        (
            "without numbers nothing is the same",
            vec![list(&["a u1 x"]), list(&["a u1 x"])],
            &["+a", "synced", "~a", "synced"],
        ),
    ];
    for (name, pieces, want) in cases {
        let pieces = || pieces.concat();
        assert_eq!(told(&mut reflector(Events::<ConfigMap>::new(client())), pieces()), want, "{name}, typed");
        assert_eq!(told(&mut reflector(Raw), pieces()), want, "{name}, raw");
    }
}

#[test]
fn old_and_new_are_told_and_the_cache_has_the_new() {
    let mut reflector =
        reflector(Objects::<ConfigMap, _>::keeping(client(), |map| map.metadata.resource_version));
    list(&["a u1 1"]).into_iter().for_each(|piece| reflector.take(piece));
    reflector.take(Piece::Applied(object("a u1 4")));
    let key = Key::new("n", "a");
    let (old, new) = (Some("1".to_owned()), Some("4".to_owned()));
    assert_eq!(
        reflector.pending.pop_back(),
        Some(Change::Updated { key: key.clone(), old, new: new.clone() })
    );
    let cache = reflector.cache().clone();
    assert_eq!((cache.get(&key), cache.progress()), (Some(new), Progress { has_synced: true, revision: 4 }));
}

#[test]
fn an_item_that_nobody_can_name_keeps_everybody_else() {
    let mut reflector = reflector(Raw);
    told(&mut reflector, list(&["a u1 1", "b u2 2"]));
    let nameless = Piece::Item(RawValue::from_string("{\"metadata\":{}}".to_owned()).unwrap());
    let mut pieces = list(&["b u2 2"]);
    pieces.insert(1, nameless);
    assert_eq!(told(&mut reflector, pieces), ["unnamed", "synced"]);
    assert_eq!(reflector.cache().len(), 2);
    assert_eq!(told(&mut reflector, list(&["b u2 2"])), ["-a", "synced"], "the next list says who is gone");
}

#[test]
fn who_is_known_stays_as_he_is_known_where_not_all_can_be_read() {
    let mut reflector = reflector(Objects::<ConfigMap>::new(client()));
    told(&mut reflector, list(&["a u1 1"]));
    let odd = || vec![Piece::Applied(object("a u1 2 odd")), Piece::Applied(object("b u2 3 odd"))];
    assert_eq!(told(&mut reflector, odd()), ["+b"]);
    let kept = reflector.cache().get(&Key::new("n", "a")).unwrap();
    assert_eq!(kept.metadata.resource_version.as_deref(), Some("1"));
    assert_eq!(told(&mut reflector, list(&["a u1 2 odd", "b u2 3 odd"])), ["synced"], "nobody is gone");
}

#[test]
fn a_reflector_that_goes_on_tells_everything_again_and_who_is_gone() {
    let mut first = reflector(Raw);
    told(&mut first, list(&["a u1 1", "b u2 2"]));
    let cache = first.cache().clone();
    drop(first);
    let resource = Resource::new("/api/v1/configmaps");
    let mut second = Reflector::with_cache(client(), resource, Rng::new(1), Raw, cache);
    assert_eq!(told(&mut second, list(&["b u2 2"])), ["~b", "-a", "synced"]);
    assert_eq!(told(&mut second, list(&["b u2 2"])), ["synced"], "once");
}

#[test]
fn an_index_follows_every_change() {
    let by_uid =
        Index::<Arc<RawObject>> { name: "uid", of: |object| vec![object.uid.clone(), "all".to_owned()] };
    let cache = Cache::new(vec![by_uid]);
    let resource = Resource::new("/api/v1/configmaps");
    let mut reflector = Reflector::with_cache(client(), resource, Rng::new(1), Raw, cache.clone());
    let names = |term: &str| {
        let found = cache.indexed("uid", term).into_iter().map(|object| object.key.name.clone());
        found.collect::<Vec<_>>().join(" ")
    };
    told(&mut reflector, list(&["b u2 2", "a u1 1"]));
    assert_eq!((names("all"), names("u1"), names("u9")), ("a b".into(), "a".into(), String::new()));
    told(&mut reflector, vec![Piece::Applied(object("a u9 3")), Piece::Deleted(object("b u2 4"))]);
    assert_eq!((names("all"), names("u1"), names("u9")), ("a".into(), String::new(), "a".into()));
    cache.add_index(Index { name: "late", of: |object| vec![object.uid.clone()] });
    assert_eq!(cache.indexed("late", "u9").len(), 1);
    assert_eq!((cache.in_namespace("n").len(), cache.in_namespace("m").len()), (1, 0));
    assert!(cache.indexed("unknown", "u9").is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_revision_goes_on_when_the_cache_has_it() {
    let mut reflector = reflector(Raw);
    let cache = reflector.cache().clone();
    let mut waiting = std::pin::pin!(cache.reached(5));
    let soon = std::time::Duration::from_secs(1);
    assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
    told(&mut reflector, list(&[]));
    assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
    told(&mut reflector, vec![Piece::Applied(object("a u1 5"))]);
    assert!(tokio::time::timeout(soon, &mut waiting).await.is_ok());
    cache.synced().await;
}

#[test]
fn one_resource_has_one_informer() {
    let mut informers = Informers::new(client(), Rng::new(1));
    let cache = informers.of("Pods", Resource::new("/api/v1/pods")).index(Index::NODE).cache();
    assert!(!cache.has_synced() && cache.is_empty());
    informers.of("Pods", Resource::new("/api/v1/pods")).on_change(|_| {});
    informers.of("Nodes", Resource::new("/api/v1/nodes"));
    let shown = format!("{informers:?}");
    assert!(shown.contains("Informer(/api/v1/pods, 1 handlers)"), "{shown}");
    assert_eq!(shown.matches("Informer(").count(), 2, "{shown}");
}
