#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use std::time::Duration;

use async_trait::async_trait;
use secure_serving::{AccessRules, GuardRules, ReviewError, Reviews};

use super::*;
use crate::testing::clock;

const TOKENS: Duration = Duration::from_secs(120);
const ALLOWED: Duration = Duration::from_secs(300);
const DENIED: Duration = Duration::from_secs(30);

/// An API server whose mind changes, and how often it was asked.
#[derive(Default)]
struct Mind {
    known: Mutex<bool>,
    allowed: Mutex<bool>,
    asked: Mutex<(usize, usize)>,
}

#[async_trait]
impl Reviews for Mind {
    async fn token(&self, token: &str) -> Result<Option<User>, ReviewError> {
        self.asked.lock().unwrap().0 += 1;
        let user = User { name: token.to_owned(), ..User::default() };
        Ok(self.known.lock().unwrap().then_some(user))
    }

    async fn access(&self, _: &User, _: &Access) -> Result<bool, ReviewError> {
        self.asked.lock().unwrap().1 += 1;
        Ok(*self.allowed.lock().unwrap())
    }
}

fn guard(mind: &Arc<Mind>) -> Guard {
    let access = Some(AccessRules { allowed_for: ALLOWED, denied_for: DENIED });
    let rules = GuardRules { tokens: Some(TOKENS), access, ..GuardRules::default() };
    Guard::new(rules, Some(mind.clone()), clock()).unwrap()
}

async fn code(guard: &Guard, token: &str) -> u16 {
    let request = http::Request::get("/metrics").header("authorization", format!("Bearer {token}"));
    let (head, ()) = request.body(()).unwrap().into_parts();
    admit(guard, &Peer::default(), &head).await.map_or_else(|refusal| refusal.status().as_u16(), |_| 200)
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

const MOMENT: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_revoked_token_and_a_lost_right_end_with_what_is_remembered() {
    let mind = Arc::new(Mind::default());
    let guard = guard(&mind);
    (*mind.known.lock().unwrap(), *mind.allowed.lock().unwrap()) = (true, true);
    assert_eq!(code(&guard, "t").await, 200);
    (*mind.known.lock().unwrap(), *mind.allowed.lock().unwrap()) = (false, false);
    pass(TOKENS - MOMENT).await;
    assert_eq!((code(&guard, "t").await, *mind.asked.lock().unwrap()), (200, (1, 1)));
    // Being asked about does not make it any fresher.
    pass(MOMENT).await;
    assert_eq!((code(&guard, "t").await, *mind.asked.lock().unwrap()), (401, (2, 1)));
    // That it is nobody's is remembered as long.
    *mind.known.lock().unwrap() = true;
    pass(TOKENS - MOMENT).await;
    assert_eq!(code(&guard, "t").await, 401);
    pass(MOMENT).await;
    assert_eq!((code(&guard, "t").await, *mind.asked.lock().unwrap()), (200, (3, 1)), "it may still do it");
    pass(ALLOWED - 2 * TOKENS).await;
    assert_eq!((code(&guard, "t").await, *mind.asked.lock().unwrap()), (403, (3, 2)));
    *mind.allowed.lock().unwrap() = true;
    pass(DENIED - MOMENT).await;
    assert_eq!(code(&guard, "t").await, 403);
    pass(MOMENT).await;
    assert_eq!(code(&guard, "t").await, 200, "a refusal is remembered for its own time");
}

/// Made-up tokens push what is known out of the memory, which costs a question, and never make it grow.
#[tokio::test(start_paused = true)]
async fn a_flood_of_made_up_tokens_costs_questions_and_no_right() {
    let mind = Arc::new(Mind::default());
    let guard = guard(&mind);
    (*mind.known.lock().unwrap(), *mind.allowed.lock().unwrap()) = (true, true);
    assert_eq!(code(&guard, "good").await, 200);
    *mind.known.lock().unwrap() = false;
    for n in 0..10_000 {
        assert_eq!(code(&guard, &format!("made-up-{n}")).await, 401);
    }
    *mind.known.lock().unwrap() = true;
    assert_eq!(code(&guard, "good").await, 200);
    assert_eq!(code(&guard, &"x".repeat(65 << 10)).await, 401, "nobody's token is that long");
}
