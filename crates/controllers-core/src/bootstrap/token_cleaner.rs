//! Deletes bootstrap tokens whose time is over.

use base::time::Now;

use super::{SYSTEM, expiration, is_token};
use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::plan::{Act, Done, Plan, Step, Why};
use crate::resource::SECRETS;
use crate::view::View;

pub(crate) const TOKEN_CLEANER: Row = Row {
    name: "token-cleaner-controller",
    aliases: &["tokencleaner"],
    identity: "token-cleaner",
    event_source: "token-cleaner-controller",
    queue: "token_cleaner",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: false,
    watches: &[Watch {
        resource: SECRETS,
        keys: |change, _, wakes| {
            let token = change.new.as_ref().filter(|secret| is_token(secret));
            wakes.extend(token.map(|secret| Key::of(secret)));
        },
    }],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Cleaner),
};

#[derive(Debug)]
struct Cleaner;

// === impl Cleaner ===

impl Controller for Cleaner {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let secret =
            view.get(SECRETS, SYSTEM, &key.name).filter(|secret| is_token(secret) && !secret.is_deleting());
        let Some((secret, end)) =
            secret.and_then(|secret| Some((secret.clone(), expiration(&secret.value())?)))
        else {
            return Plan::nothing();
        };
        let left = end.since(now.wall);
        if left.is_zero() {
            Plan::of(Step::in_turn([Act::delete(&secret)]))
        } else {
            Plan::nothing().wake(Some(left))
        }
    }

    fn settle(&mut self, _view: &dyn View, _key: &Key, _now: Now, done: &Done) -> Plan {
        // Another Secret of that name is not meant, and a change of it will wake us.
        match done.failure().filter(|refusal| refusal.why != Why::Conflict) {
            Some(refusal) => Plan::failed(format!("deleting a bootstrap token: {refusal}")),
            None => Plan::nothing(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;
    use crate::testing::{Draft, World, at, draft, said};

    fn token(expiration: &str) -> Draft {
        draft(SECRETS, "bootstrap-token-abcdef")
            .set("/metadata/namespace", json!(SYSTEM))
            .set("/type", json!("bootstrap.kubernetes.io/token"))
            .set("/data/expiration", json!(STANDARD.encode(expiration)))
    }

    #[test]
    fn a_token_goes_when_its_time_is_over() {
        let over = ["delete secrets kube-system/bootstrap-token-abcdef"];
        for (row, secret, want, wake) in [
            ("not yet", token("1970-01-01T00:20:00Z"), &[][..], Some(200)),
            ("over", token("1970-01-01T00:16:40Z"), &over, None),
            ("another zone", token("1970-01-01T01:16:40+01:00"), &over, None),
            ("no sense", token("tomorrow"), &over, None),
            ("no end", token(""), &[], None),
            (
                "another kind of Secret",
                token("1970-01-01T00:00:00Z").set("/type", json!("Opaque")),
                &[],
                None,
            ),
        ] {
            let world = World::new(secret);
            let key = Key::new(SYSTEM, "bootstrap-token-abcdef");
            let plan = Cleaner.reconcile(&world.cache, &key, at(1000));
            assert_eq!(
                (said(&plan), plan.wake),
                (want.iter().map(|s| (*s).to_owned()).collect(), wake.map(Duration::from_secs)),
                "{row}"
            );
        }
    }
}
