//! The loop against a kernel that can be told to fail, on a clock that does not run by itself.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use proxy::observed::Triggers;
use proxy::ports::{Dataplane, Error};
use proxy::sync::{Config, Gap, Periods, Report, run};
use proxy::yield_flag::{Outcome, YieldFlag};
use proxy::{Listed, Update};
use proxy_core::objects::Family;
use proxy_core::rules::{Delta, Mode, RuleSet, Settings};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

const GAP: Duration = Duration::from_millis(10);
const PERIODS: Periods =
    Periods { gap: Gap::Said(GAP), verify: Duration::from_secs(600), retry: Duration::from_secs(5) };

#[derive(Clone, Default)]
struct Kernel {
    done: Arc<Mutex<Vec<String>>>,
    failures: Arc<AtomicUsize>,
    /// Comparisons are not possible for all that others do.
    is_restless: Arc<AtomicBool>,
    /// Comparisons take half a second, unless somebody asks to yield.
    is_slow: Arc<AtomicBool>,
    /// The rules when it was last tidied up.
    tidied: Arc<Mutex<(usize, bool)>>,
    /// So often tidying goes on until somebody asks to yield.
    tidies_slowly: Arc<AtomicUsize>,
    notify: Arc<Mutex<Option<mpsc::Sender<()>>>>,
    hears_the_past: Arc<AtomicBool>,
    /// So often somebody else changes everything again right after it was put right.
    rivals: Arc<AtomicUsize>,
    /// So much that nobody looks at it without need.
    is_large: Arc<AtomicBool>,
}

struct Bench {
    kernel: Kernel,
    news: mpsc::Sender<Update>,
    report: watch::Receiver<Report>,
    _stop: DropGuard,
}

impl Kernel {
    fn act(&self, what: String) -> Result<(), Error> {
        let is_failing =
            self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        self.done.lock().unwrap().push(if is_failing { format!("{what} failed") } else { what });
        match is_failing {
            true => Err(Error::Listening(std::io::Error::other("told to fail"))),
            false => Ok(()),
        }
    }

    fn done(&self) -> Vec<String> {
        self.done.lock().unwrap().clone()
    }
}

impl Dataplane for Kernel {
    fn verify(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Result<Outcome<Vec<String>>, Error> {
        if self.is_restless.load(Ordering::SeqCst) {
            self.done.lock().unwrap().push(format!("unread {}", rules.ports.len()));
            let table = proxy_core::nft::table(Family::V4);
            return Err(Error::Unread(sys::nft::Error::Disturbed { table }));
        }
        if self.is_slow.load(Ordering::SeqCst) {
            self.done.lock().unwrap().push(format!("look {}", rules.ports.len()));
            for _ in 0..500 {
                if flag.is_raised() {
                    return Ok(Outcome::Left);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.act(format!("verify {}", rules.ports.len()))?;
        let less = |n: usize| n.checked_sub(1);
        if self.rivals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            return Ok(Outcome::Done(Vec::new()));
        }
        let _ = self.notify.lock().unwrap().as_ref().unwrap().try_send(());
        Ok(Outcome::Done(vec!["everything".to_owned()]))
    }

    fn tidy(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Outcome<()> {
        let less = |n: usize| n.checked_sub(1);
        if self.tidies_slowly.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            for _ in 0..5000 {
                if flag.is_raised() {
                    return Outcome::Left;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        *self.tidied.lock().unwrap() = (rules.ports.len(), flag.is_raised());
        Outcome::Done(())
    }

    fn apply(&mut self, rules: &RuleSet, _: &Delta) -> Result<(), Error> {
        self.act(format!("apply {}", rules.ports.len()))
    }

    fn listen(&mut self) -> Result<mpsc::Receiver<()>, Error> {
        let (notify, notifications) = mpsc::channel(1);
        *self.notify.lock().unwrap() = Some(notify);
        Ok(notifications)
    }

    fn last_to_touch(&self) -> Option<String> {
        Some("process 7 (kube-proxy)".to_owned())
    }

    fn hears_the_past(&self) -> bool {
        self.hears_the_past.load(Ordering::SeqCst)
    }

    fn is_worth_a_look(&self, _: &RuleSet) -> bool {
        !self.is_large.load(Ordering::SeqCst)
    }
}

impl Bench {
    fn start() -> Self {
        Self::with(PERIODS)
    }

    /// Settled, and rested.
    async fn paced(gap: Gap) -> Self {
        let bench = Self::with(Periods { gap, ..PERIODS });
        bench.settle().await;
        sleep(Duration::from_secs(30)).await;
        bench
    }

    fn with(periods: Periods) -> Self {
        let (news, updates) = mpsc::channel(16);
        let (report, seen) = watch::channel(Report::default());
        let (kernel, token) = (Kernel::default(), CancellationToken::new());
        let settings = Settings::new(Mode::Nftables);
        let config = Config { node_name: "here".into(), settings, periods, triggers: Triggers::default() };
        let planes: Vec<(Family, Box<dyn Dataplane>)> = vec![(Family::V4, Box::new(kernel.clone()))];
        tokio::spawn(run(config, planes, updates, Arc::new(report), token.clone()));
        Self { kernel, news, report: seen, _stop: token.drop_guard() }
    }

    async fn settled() -> Self {
        let bench = Self::start();
        bench.settle().await;
        bench
    }

    async fn settle(&self) {
        self.tell(Update::End(Listed::Services)).await;
        self.tell(Update::End(Listed::Slices)).await;
        self.until(&["verify 0", "verify 0"]).await;
        self.kernel.done.lock().unwrap().clear();
    }

    async fn tell(&self, update: Update) {
        self.news.send(update).await.unwrap();
    }

    /// While somebody works and does not wait, time has to be moved on.
    async fn meanwhile(&self, is_so: impl Fn(&[String]) -> bool) {
        for _ in 0..20_000 {
            if is_so(&self.kernel.done()) {
                return;
            }
            tokio::time::advance(Duration::from_millis(5)).await;
            std::thread::sleep(Duration::from_micros(200));
        }
        panic!("{:?}", self.kernel.done());
    }

    /// Time passes only while everybody waits.
    async fn until(&self, done: &[&str]) {
        let start = Instant::now();
        while self.kernel.done() != done {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?} is not {done:?}", self.kernel.done());
            sleep(Duration::from_millis(1)).await;
        }
    }
}

fn service(number: u8) -> Update {
    let ip = format!("10.96.0.{number}");
    let made: Service = serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": format!("s{number}")},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"], "ports": [{"port": 80}]},
    }))
    .unwrap();
    Update::Service(Box::new(made))
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_both_lists_have_come() {
    let bench = Bench::start();
    bench.tell(service(1)).await;
    bench.tell(Update::Begin(Listed::Services)).await;
    bench.tell(Update::End(Listed::Services)).await;
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(bench.kernel.done(), Vec::<String>::new());
    bench.tell(Update::End(Listed::Slices)).await;
    // Once for what is there, once more after we began to listen.
    bench.until(&["verify 0", "verify 0"]).await;
}

#[tokio::test(start_paused = true)]
async fn who_hears_the_past_does_not_look_twice() {
    let bench = Bench::start();
    bench.kernel.hears_the_past.store(true, Ordering::SeqCst);
    bench.tell(Update::End(Listed::Services)).await;
    bench.tell(Update::End(Listed::Slices)).await;
    bench.until(&["verify 0"]).await;
    bench.tell(service(1)).await;
    bench.until(&["verify 0", "apply 1"]).await;
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    notify.send(()).await.unwrap();
    bench.until(&["verify 0", "apply 1", "verify 1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_applied_at_once_and_what_changes_nothing_is_not() {
    let bench = Bench::settled().await;
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    bench.tell(service(1)).await;
    bench.until(&["apply 1"]).await;
    assert!(start.elapsed() < GAP, "{:?}", start.elapsed());
    bench.tell(service(1)).await;
    bench.tell(service(2)).await;
    bench.until(&["apply 1", "apply 2"]).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_everything_is_compared_until_it_is_right() {
    let bench = Bench::settled().await;
    bench.kernel.failures.store(3, Ordering::SeqCst);
    bench.tell(service(1)).await;
    bench.until(&["apply 1 failed", "verify 1 failed", "verify 1 failed", "verify 1"]).await;
    let report = bench.report.borrow().families[0].clone();
    assert_eq!((report.failures, report.pending_since), (3, None));
    bench.tell(service(2)).await;
    bench.until(&["apply 1 failed", "verify 1 failed", "verify 1 failed", "verify 1", "apply 2"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_kernel_is_looked_at_when_others_touch_it_and_now_and_then() {
    let bench = Bench::settled().await;
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    let start = Instant::now();
    notify.send(()).await.unwrap();
    bench.until(&["verify 0"]).await;
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    sleep(PERIODS.verify + Duration::from_secs(1)).await;
    assert_eq!(bench.kernel.done(), ["verify 0", "verify 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_look_that_is_not_possible_holds_up_no_change_and_is_made_up_for() {
    let bench = Bench::settled().await;
    bench.kernel.is_restless.store(true, Ordering::SeqCst);
    sleep(PERIODS.verify + Duration::from_millis(100)).await;
    assert_eq!(bench.kernel.done(), ["unread 0"]);
    bench.tell(service(1)).await;
    bench.until(&["unread 0", "apply 1"]).await;
    // Nor after others touched our own rules, and it is not tried all the time then.
    bench.kernel.done.lock().unwrap().clear();
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    notify.send(()).await.unwrap();
    bench.until(&["unread 1"]).await;
    sleep(Duration::from_millis(500)).await;
    bench.tell(service(2)).await;
    bench.until(&["unread 1", "apply 2"]).await;
    let report = bench.report.borrow().families[0].clone();
    assert_eq!((report.failures, report.pending_since), (0, None));
    bench.kernel.is_restless.store(false, Ordering::SeqCst);
    bench.until(&["unread 1", "apply 2", "verify 2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_a_look_was_to_make_up_for_is_made_without_it() {
    let verify = Duration::from_secs(4);
    let bench = Bench::with(Periods { verify, ..PERIODS });
    bench.settle().await;
    bench.kernel.is_restless.store(true, Ordering::SeqCst);
    // So many looks failed that they do not make way any more.
    sleep(Duration::from_secs(60)).await;
    bench.kernel.done.lock().unwrap().clear();
    for number in 1..=20 {
        bench.tell(service(number)).await;
        sleep(Duration::from_millis(900)).await;
    }
    let changes = |done: &String| done.starts_with("apply");
    assert_eq!(bench.kernel.done().iter().filter(|done| changes(done)).count(), 20);
    assert_eq!(bench.report.borrow().families[0].failures, 0);
}

#[tokio::test(start_paused = true)]
async fn a_look_for_its_own_sake_makes_way_for_a_change_and_is_made_up_for() {
    let bench = Bench::settled().await;
    bench.kernel.is_slow.store(true, Ordering::SeqCst);
    tokio::time::advance(PERIODS.verify).await;
    bench.meanwhile(|done| done == ["look 0"]).await;
    bench.tell(service(1)).await;
    bench.meanwhile(|done| done == ["look 0", "apply 1"]).await;
    bench.meanwhile(|done| done == ["look 0", "apply 1", "look 1", "verify 1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_look_that_finds_nothing_wrong_delays_no_change() {
    let bench = Bench::paced(Gap::Said(Duration::from_secs(5))).await;
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    notify.send(()).await.unwrap();
    bench.until(&["verify 0"]).await;
    let start = Instant::now();
    bench.tell(service(1)).await;
    bench.until(&["verify 0", "apply 1"]).await;
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
    // Somebody who touches our rules all the time does not keep us looking all the time.
    let start = Instant::now();
    for _ in 0..2 {
        notify.send(()).await.unwrap();
    }
    bench.until(&["verify 0", "apply 1", "verify 1"]).await;
    assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_gap_that_nobody_asked_for_is_as_short_as_the_change_was_quick() {
    // The clock stands still while the kernel is told, so a change takes no time here.
    for (gap, is_at_once) in
        [(Gap::AtMost(Duration::from_secs(5)), true), (Gap::Said(Duration::from_secs(5)), false)]
    {
        let bench = Bench::paced(gap).await;
        bench.tell(service(1)).await;
        bench.until(&["apply 1"]).await;
        let start = Instant::now();
        bench.tell(service(2)).await;
        bench.until(&["apply 1", "apply 2"]).await;
        assert_eq!(start.elapsed() < Duration::from_secs(1), is_at_once, "{gap:?} {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_does_not_make_way_for_ever() {
    let verify = Duration::from_secs(4);
    let bench = Bench::with(Periods { verify, ..PERIODS });
    bench.settle().await;
    bench.kernel.is_slow.store(true, Ordering::SeqCst);
    tokio::time::advance(verify).await;
    let looks = |done: &[String]| done.iter().filter(|done| done.starts_with("look")).count();
    let mut waits = Vec::new();
    for number in 1..=11 {
        let start = Instant::now();
        bench.meanwhile(|done| looks(done) == usize::from(number)).await;
        waits.push(start.elapsed().as_secs());
        bench.tell(service(number)).await;
    }
    // After each of them it lets others be for longer.
    let grow = |pair: &[u64]| pair[0] < pair[1] || pair[1] >= verify.as_secs();
    assert!(waits[1..].windows(2).all(grow), "{waits:?}");
    bench.meanwhile(|done| done.iter().any(|done| done.starts_with("verify"))).await;
    assert_eq!(looks(&bench.kernel.done()), 11);
}

#[tokio::test(start_paused = true)]
async fn after_a_change_it_is_tidied_up() {
    let bench = Bench::settled().await;
    bench.tell(service(1)).await;
    bench.until(&["apply 1"]).await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(*bench.kernel.tidied.lock().unwrap(), (1, false));
}

#[tokio::test(start_paused = true)]
async fn tidying_that_made_way_for_nothing_is_done_after_all() {
    let bench = Bench::settled().await;
    bench.kernel.tidies_slowly.store(1, Ordering::SeqCst);
    bench.tell(service(1)).await;
    bench.meanwhile(|_| bench.kernel.tidies_slowly.load(Ordering::SeqCst) == 0).await;
    // News that comes to nothing.
    bench.tell(service(2)).await;
    bench.tell(Update::NoService { namespace: "ns".into(), name: "s2".into() }).await;
    bench.meanwhile(|_| *bench.kernel.tidied.lock().unwrap() == (1, false)).await;
    assert_eq!(bench.kernel.done(), ["apply 1"]);
}

#[tokio::test(start_paused = true)]
async fn news_after_a_failure_waits_without_spinning() {
    let bench = Bench::settled().await;
    bench.kernel.failures.store(2, Ordering::SeqCst);
    bench.tell(service(1)).await;
    bench.until(&["apply 1 failed"]).await;
    bench.tell(service(2)).await;
    let mut report = bench.report.clone();
    report.wait_for(|report| report.pending.services == 2).await.unwrap();
    // The clock only goes on while everybody waits.
    bench.until(&["apply 1 failed", "verify 2 failed", "verify 2"]).await;
    report.wait_for(|report| report.pending.services == 0).await.unwrap();
    // What says nothing new does not wait for anything.
    bench.tell(service(2)).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.report.borrow().pending.services, 0);
}

/// Two proxies in one network namespace would write for ever, many times a second.
#[tokio::test(start_paused = true)]
async fn a_rival_is_named_and_met_less_and_less_often_and_holds_up_no_change() {
    let bench = Bench::settled().await;
    bench.kernel.rivals.store(usize::MAX, Ordering::SeqCst);
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    notify.send(()).await.unwrap();
    sleep(Duration::from_secs(300)).await;
    let looks = bench.kernel.done().len();
    assert!((55..=75).contains(&looks), "{looks}");
    let report = bench.report.borrow().families[0].clone();
    assert_eq!(report.contested_by.as_deref(), Some("process 7 (kube-proxy)"));
    bench.kernel.done.lock().unwrap().clear();
    bench.tell(service(1)).await;
    bench.meanwhile(|done| done.iter().any(|done| done == "apply 1")).await;
    // The rival goes, and all is well again.
    bench.kernel.rivals.store(0, Ordering::SeqCst);
    sleep(PERIODS.verify + Duration::from_secs(60)).await;
    assert_eq!(bench.report.borrow().families[0].contested_by, None);
}

#[tokio::test(start_paused = true)]
async fn what_is_large_is_looked_at_only_for_a_reason() {
    let bench = Bench::settled().await;
    bench.kernel.is_large.store(true, Ordering::SeqCst);
    sleep(3 * PERIODS.verify).await;
    assert_eq!(bench.kernel.done(), Vec::<String>::new());
    bench.tell(service(1)).await;
    bench.until(&["apply 1"]).await;
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    notify.send(()).await.unwrap();
    bench.until(&["apply 1", "verify 1"]).await;
    // It is no longer, and is looked at again.
    bench.kernel.is_large.store(false, Ordering::SeqCst);
    sleep(PERIODS.verify + Duration::from_secs(1)).await;
    assert_eq!(bench.kernel.done(), ["apply 1", "verify 1", "verify 1"]);
}

#[tokio::test(start_paused = true)]
async fn after_others_touched_it_a_change_comes_first_and_then_everything_is_compared() {
    let bench = Bench::paced(Gap::AtMost(GAP)).await;
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    bench.kernel.is_slow.store(true, Ordering::SeqCst);
    notify.send(()).await.unwrap();
    bench.meanwhile(|done| done == ["look 0"]).await;
    bench.tell(service(1)).await;
    bench.meanwhile(|done| done == ["look 0", "apply 1", "look 1", "verify 1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_refused_after_others_touched_it_is_made_good_at_once() {
    let bench = Bench::paced(Gap::AtMost(GAP)).await;
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    bench.kernel.is_slow.store(true, Ordering::SeqCst);
    notify.send(()).await.unwrap();
    bench.meanwhile(|done| done == ["look 0"]).await;
    bench.kernel.failures.store(1, Ordering::SeqCst);
    bench.tell(service(1)).await;
    bench.meanwhile(|done| done == ["look 0", "apply 1 failed", "look 1", "verify 1"]).await;
    assert_eq!(bench.report.borrow().families[0].failures, 0);
}

#[tokio::test(start_paused = true)]
async fn news_without_end_does_not_keep_us_from_healing() {
    let bench = Bench::paced(Gap::AtMost(GAP)).await;
    let notify = bench.kernel.notify.lock().unwrap().clone().unwrap();
    notify.send(()).await.unwrap();
    for number in 1..=100 {
        bench.tell(service(number)).await;
        sleep(Duration::from_millis(10)).await;
        if bench.kernel.done().iter().any(|done| done.starts_with("verify")) {
            return;
        }
    }
    panic!("{:?}", bench.kernel.done());
}
