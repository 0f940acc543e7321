//! Tokens of ServiceAccounts as Secrets that nobody asked for: what older servers made, and nobody has used for a year, is marked,
//! and a year later deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use base::time::{Now, Wall};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::controller::{Controller, Key, Retry, Row};
use crate::object::Object;
use crate::plan::{Act, Done, Outcome, PatchKind, Plan, Step};
use crate::resource::{CONFIG_MAPS, PODS, SECRETS, SERVICE_ACCOUNTS};
use crate::secrets;
use crate::view::View;

pub(crate) const LEGACY_TOKEN_CLEANER: Row = Row {
    name: "legacy-serviceaccount-token-cleaner-controller",
    aliases: &["legacy-service-account-token-cleaner"],
    identity: "legacy-service-account-token-cleaner",
    event_source: "legacy-serviceaccount-token-cleaner-controller",
    queue: "legacy_service_account_token_cleaner",
    workers: |_| 1,
    retry: Retry { first: PERIOD, last: PERIOD, gives_up_after: None },
    is_on_by_default: true,
    watches: &[],
    reads: &[PODS, SECRETS, SERVICE_ACCOUNTS],
    is_single: true,
    make: |tuning| Box::new(Cleaner { unused: tuning.legacy_service_account_token_clean_up_period }),
};

const PERIOD: Duration = Duration::from_hours(24);
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

#[derive(Debug)]
struct Cleaner {
    unused: Duration,
}

// === impl Cleaner ===

impl Controller for Cleaner {
    /// Since when the API server notes who uses a token is asked first: before, nobody knows what is unused.
    fn reconcile(&mut self, _view: &dyn View, _key: &Key, _now: Now) -> Plan {
        let path =
            CONFIG_MAPS.object_path("kube-system", "kube-apiserver-legacy-service-account-token-tracking");
        Plan::of(Step::in_turn([Act::Get { path }])).wake(Some(PERIOD))
    }

    fn settle(&mut self, view: &dyn View, _key: &Key, now: Now, done: &Done) -> Plan {
        let [(Act::Get { .. }, Outcome::Done(map))] = done.last() else { return Plan::nothing() };
        let map: Value = serde_json::from_slice(map).unwrap_or_default();
        let Some(since) = map["data"]["since"].as_str().and_then(date) else { return Plan::nothing() };
        // The day after tracking began.
        let tracked = Wall::from_secs(since.secs() + 24 * 3600);
        let before =
            Wall(now.wall.0.saturating_sub(i64::try_from(self.unused.as_nanos()).unwrap_or(i64::MAX)));
        if before < tracked {
            return Plan::nothing();
        }
        let mut mounted = BTreeMap::new();
        let secrets = view.list(SECRETS, "");
        let acts = secrets.iter().filter_map(|secret| act(view, secret, before, now.wall, &mut mounted));
        Plan::nothing().then(Step::at_once(acts))
    }
}

/// What becomes of one Secret.
fn act(
    view: &dyn View,
    secret: &Object,
    before: Wall,
    now: Wall,
    mounted: &mut BTreeMap<String, Vec<String>>,
) -> Option<Act> {
    let value = secret.value();
    let meta = &secret.meta;
    if value["type"] != "kubernetes.io/service-account-token" || secret.is_deleting() {
        return None;
    }
    let is_old = meta.created.is_some_and(|created| created < before);
    let is_unused = secret.label(LAST_USED).map_or(Some(true), |used| Some(date(used)? < before));
    if !is_old || is_unused != Some(true) || !is_made_unasked(view, secret, &value) {
        return None;
    }
    let names = mounted.entry(meta.namespace.to_string()).or_insert_with(|| {
        let pods = view.list(PODS, &meta.namespace);
        pods.iter().flat_map(|pod| secrets::named(&pod.value())).collect()
    });
    if names.iter().any(|name| **name == *meta.name) {
        return None;
    }
    let Some(invalid) = secret.label(INVALID_SINCE).and_then(date) else {
        let label = json!({"metadata": {"uid": meta.uid, "labels": {INVALID_SINCE: day(now)}}});
        return Some(Act::patch(secret, PatchKind::Merge, &label));
    };
    (invalid < before).then(|| Act::delete(secret))
}

/// Whether its account names it: older servers wrote that down for those that they made.
fn is_made_unasked(view: &dyn View, secret: &Object, value: &Value) -> bool {
    let annotation =
        |key: &str| value["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
    let (name, uid) =
        (annotation("kubernetes.io/service-account.name"), annotation("kubernetes.io/service-account.uid"));
    let Some(account) = view.get(SERVICE_ACCOUNTS, &secret.meta.namespace, &name) else { return false };
    let account_value = account.value();
    let mut named = account_value["secrets"].as_array().into_iter().flatten();
    (uid.is_empty() || uid == *account.meta.uid) && named.any(|one| one["name"] == *secret.meta.name)
}

fn date(text: &str) -> Option<Wall> {
    let date: Date = text.parse().ok().filter(|_| text.len() == 10)?;
    let midnight = date.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some(Wall::from_secs(midnight.as_second()))
}

fn day(time: Wall) -> String {
    Timestamp::from_second(time.secs()).unwrap_or_default().strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft, pod};

    const YEAR: u64 = 365 * 24 * 3600;

    fn token() -> Draft {
        draft(SECRETS, "t")
            .created(1)
            .set("/type", json!("kubernetes.io/service-account-token"))
            .annotation("kubernetes.io/service-account.name", "a")
    }

    fn account(secrets: &[&str]) -> Draft {
        let named: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
        draft(SERVICE_ACCOUNTS, "a").set("/secrets", json!(named))
    }

    /// What happens three years after the beginning of 1970, if uses are noted since then.
    fn act_on(objects: Vec<Draft>, since: &str) -> String {
        let world = World::new(objects);
        let mut cleaner = Cleaner { unused: Duration::from_secs(YEAR) };
        let asked = cleaner.reconcile(&world.cache, &Key::all(), at(3 * YEAR));
        let map = Outcome::Done(json!({"data": {"since": since}}).to_string().into());
        let plan = world.settle(&mut cleaner, "", at(3 * YEAR), &asked, &map);
        let words = plan.acts().map(|act| match act {
            Act::Delete { .. } => "delete".to_owned(),
            act => format!(
                "mark {}",
                act.body()["metadata"]["labels"][INVALID_SINCE].as_str().unwrap_or_default()
            ),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_nobody_asked_for_and_nobody_uses_goes_in_two_years() {
        let ours = || account(&["t"]);
        let mounts = pod("p").set("/spec/volumes", json!([{"name": "v", "secret": {"secretName": "t"}}]));
        for (row, objects, want) in [
            ("first it is marked", vec![token(), ours()], "mark 1972-12-31"),
            ("not for long yet", vec![token().label(INVALID_SINCE, "1972-06-01"), ours()], ""),
            ("then it goes", vec![token().label(INVALID_SINCE, "1971-06-01"), ours()], "delete"),
            ("used lately", vec![token().label(LAST_USED, "1972-06-01"), ours()], ""),
            ("used long ago", vec![token().label(LAST_USED, "1971-06-01"), ours()], "mark 1972-12-31"),
            ("nobody knows when", vec![token().label(LAST_USED, "yesterday"), ours()], ""),
            ("new", vec![token().created((2 * YEAR + 9).cast_signed()), ours()], ""),
            ("asked for", vec![token(), account(&[])], ""),
            (
                "of another account",
                vec![token().annotation("kubernetes.io/service-account.uid", "x"), ours()],
                "",
            ),
            ("a Pod mounts it", vec![token(), ours(), mounts], ""),
            ("another kind", vec![token().set("/type", json!("Opaque")), ours()], ""),
        ] {
            assert_eq!(act_on(objects, "1970-06-01"), want, "{row}");
        }
        assert_eq!(act_on(vec![token(), ours()], "1972-06-01"), "", "uses are not noted for long enough");
    }
}
