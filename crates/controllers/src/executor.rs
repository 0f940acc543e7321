//! Carries out the steps of a plan, and chooses nothing.

use bytes::Bytes;
use controllers_core::plan::Target;
use controllers_core::plan::{Act, Done, Guard, Outcome, Pace, Step, Why, WriteError};
use futures_util::StreamExt;
use serde_json::Value;

use crate::port::Api;

/// Requests of one step that are under way at a time.
const AT_A_TIME: usize = 64;

/// Adds what became of each act. After a step with a failure nothing is tried any more.
pub(crate) async fn carry_out(api: &dyn Api, steps: &[Step], done: &mut Done) {
    done.last = done.acts.len();
    done.rounds += 1;
    let mut has_failed = false;
    for step in steps {
        let outcomes = if has_failed { skip(step.acts.len()) } else { step_outcomes(api, step).await };
        has_failed |= outcomes.iter().any(|outcome| !outcome.is_done());
        done.acts.extend(step.acts.iter().cloned().zip(outcomes));
    }
}

async fn step_outcomes(api: &dyn Api, step: &Step) -> Vec<Outcome> {
    if let Some(guard) = &step.guard
        && let Err(refusal) = check(api, guard).await
    {
        let mut outcomes = skip(step.acts.len());
        if let Some(first) = outcomes.first_mut() {
            *first = Outcome::Failed(refusal);
        }
        return outcomes;
    }
    let (mut outcomes, mut size) = (Vec::with_capacity(step.acts.len()), 1);
    while outcomes.len() < step.acts.len() {
        let rest = &step.acts[outcomes.len()..];
        let batch = match step.pace {
            Pace::InTurn => 1,
            Pace::AtOnce => rest.len(),
            Pace::SlowStart => size.min(rest.len()),
        };
        size *= 2;
        let mut requests = Vec::with_capacity(batch);
        for act in &rest[..batch] {
            requests.push(act_outcome(api, act));
        }
        let batch: Vec<Outcome> = futures_util::stream::iter(requests).buffered(AT_A_TIME).collect().await;
        let has_failed = batch.iter().any(|outcome| !outcome.is_done());
        outcomes.extend(batch);
        if has_failed {
            outcomes.extend(skip(step.acts.len() - outcomes.len()));
        }
    }
    outcomes
}

async fn act_outcome(api: &dyn Api, act: &Act) -> Outcome {
    match api.act(act).await {
        Ok(answer) => Outcome::Done(answer),
        Err(refusal) => Outcome::Failed(refusal),
    }
}

/// Whether the object is alive, asked of the server and not of a cache.
async fn check(api: &dyn Api, guard: &Guard) -> Result<(), WriteError> {
    let Guard { resource, namespace, name, uid } = guard.clone();
    let path = Target { resource, namespace, name, subresource: "" }.path();
    let live: Bytes = api.act(&Act::Get { path }).await?;
    let live: Value = serde_json::from_slice(&live).unwrap_or_default();
    let Guard { namespace, name, .. } = guard;
    let found = live["metadata"]["uid"].as_str().unwrap_or_default();
    if found != uid {
        let message =
            format!("original {} {namespace}/{name} is gone: got uid {found}, wanted {uid}", resource.kind);
        return Err(WriteError::new(Why::Conflict, message));
    }
    match live["metadata"]["deletionTimestamp"].as_str() {
        Some(at) => {
            let message = format!("{namespace}/{name} has just been deleted at {at}");
            Err(WriteError::new(Why::Conflict, message))
        }
        None => Ok(()),
    }
}

fn skip(count: usize) -> Vec<Outcome> {
    vec![Outcome::Skipped; count]
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use controllers_core::resource::{PODS, Resource};
    use serde_json::json;

    use super::*;

    /// Refuses the acts of these numbers.
    #[derive(Default)]
    struct Fussy {
        refuses: Vec<usize>,
        asked: Mutex<Vec<String>>,
        live: Value,
    }

    #[async_trait::async_trait]
    impl Api for Fussy {
        async fn act(&self, act: &Act) -> Result<Bytes, WriteError> {
            let number = {
                let Ok(mut asked) = self.asked.lock() else { return Ok(Bytes::new()) };
                asked.push(act.name());
                asked.len()
            };
            if matches!(act, Act::Get { .. }) {
                return Ok(self.live.to_string().into());
            }
            if self.refuses.contains(&number) {
                Err(WriteError::new(Why::Forbidden, "no"))
            } else {
                Ok(Bytes::new())
            }
        }

        async fn revision(&self, _: Resource) -> Result<u64, WriteError> {
            Ok(1)
        }
    }

    fn acts(count: usize) -> Vec<Act> {
        (0..count).map(|n| Act::create(PODS, &format!("n{n}"), json!({}))).collect()
    }

    async fn outcomes(api: &Fussy, steps: &[Step]) -> String {
        let mut done = Done::default();
        carry_out(api, steps, &mut done).await;
        let word = |outcome: &Outcome| match outcome {
            Outcome::Done(_) => '+',
            Outcome::Failed(_) => 'x',
            Outcome::Skipped => '-',
        };
        done.acts.iter().map(|(_, outcome)| word(outcome)).collect()
    }

    #[tokio::test]
    async fn a_failure_ends_the_batch_the_step_and_the_plan() {
        let fussy = |refuses: &[usize]| Fussy { refuses: refuses.to_vec(), ..Fussy::default() };
        for (pace, refuses, want) in [
            (Pace::InTurn, &[][..], "+++++++"),
            (Pace::InTurn, &[3], "++x----"),
            (Pace::AtOnce, &[3], "++x++++"),
            (Pace::SlowStart, &[], "+++++++"),
            (Pace::SlowStart, &[1], "x------"),
            (Pace::SlowStart, &[2], "+x+----"),
            (Pace::SlowStart, &[5], "++++x++"),
        ] {
            let step = Step { pace, ..Step::in_turn(acts(7)) };
            assert_eq!(outcomes(&fussy(refuses), &[step]).await, want, "{pace:?} {refuses:?}");
        }
        let steps = [Step::in_turn(acts(1)), Step::in_turn(acts(2))];
        assert_eq!(outcomes(&fussy(&[1]), &steps).await, "x--");
    }

    #[tokio::test]
    async fn who_is_deleted_adopts_nobody() {
        let guard = Guard { resource: PODS, namespace: "n".into(), name: "p".into(), uid: "u".into() };
        for (live, want) in [
            (json!({"metadata": {"uid": "u"}}), "++"),
            (json!({"metadata": {"uid": "v"}}), "x-"),
            (json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}), "x-"),
        ] {
            let api = Fussy { live, ..Fussy::default() };
            assert_eq!(outcomes(&api, &[Step::at_once(acts(2)).guarded(guard.clone())]).await, want);
        }
    }
}
