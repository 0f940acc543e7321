use super::*;

const S: fn(u64) -> Duration = Duration::from_secs;

fn worker(kind: ProbeKind, success: i32, failure: i32, delay: i32) -> Worker {
    let probe = Probe {
        success_threshold: Some(success),
        failure_threshold: Some(failure),
        initial_delay_seconds: Some(delay),
        ..Default::default()
    };
    Worker::new(ProbeSpec::new(kind, &probe))
}

fn at(secs: u64) -> Now {
    Now { mono: Mono(S(secs)), wall: Wall::from_secs(1_000 + secs as i64) }
}

/// Started at mono 100.
fn seen(id: &str, started: bool) -> Seen {
    Seen { id: id.into(), running: true, started_at: Some(Wall::from_secs(1_100)), started }
}

/// Ticks once and feeds one outcome; the verdict it brought, if any.
fn say(w: &mut Worker, s: &Seen, outcome: Outcome) -> Option<bool> {
    assert!(w.tick(Some(s), at(200)).probe, "expected a probe");
    w.outcome(&s.id, outcome).change.map(|c| c.good)
}

#[test]
fn defaults_of_the_api() {
    let spec = ProbeSpec::new(ProbeKind::Liveness, &Probe::default());
    let (p, t) = (spec.period.as_secs(), spec.timeout.as_secs());
    assert_eq!((p, t, spec.success_threshold, spec.failure_threshold), (10, 1, 1, 3));
    assert_eq!(spec.initial_delay, Duration::ZERO);
}

#[test]
fn thresholds_count_runs_of_equal_results() {
    use Outcome::{Failure, Success, Warning};
    let (mut w, s) = (worker(ProbeKind::Readiness, 2, 3, 0), seen("a", true));
    let story = [
        (Success, None),
        (Warning, Some(true)),
        (Success, None),
        (Failure, None),
        (Failure, None),
        (Success, None),
        (Failure, None),
        (Failure, None),
        (Failure, Some(false)),
        (Failure, None),
        (Success, None),
        (Success, Some(true)),
    ];
    for (i, (outcome, want)) in story.into_iter().enumerate() {
        assert_eq!(say(&mut w, &s, outcome), want, "step {i}");
    }
}

#[test]
fn liveness_failure_pauses_until_a_new_instance() {
    let (mut w, s) = (worker(ProbeKind::Liveness, 1, 1, 0), seen("a", true));
    assert_eq!(say(&mut w, &s, Outcome::Failure), Some(false));
    assert!(!w.tick(Some(&s), at(300)).probe);
    assert!(w.tick(Some(&seen("b", true)), at(300)).probe);
}

#[test]
fn startup_pauses_after_either_verdict_and_gates_the_others() {
    for (outcome, good) in [(Outcome::Success, true), (Outcome::Failure, false)] {
        let (mut w, s) = (worker(ProbeKind::Startup, 1, 1, 0), seen("a", false));
        assert_eq!(say(&mut w, &s, outcome), Some(good));
        assert!(!w.tick(Some(&s), at(300)).probe);
    }
    for kind in [ProbeKind::Liveness, ProbeKind::Readiness] {
        let mut w = worker(kind, 1, 1, 0);
        assert!(!w.tick(Some(&seen("a", false)), at(200)).probe);
        assert!(w.tick(Some(&seen("a", true)), at(200)).probe);
    }
    // Taken over from an earlier agent, already started: nothing to find out.
    assert!(!worker(ProbeKind::Startup, 1, 1, 0).tick(Some(&seen("a", true)), at(200)).probe);
}

#[test]
fn the_initial_delay_counts_from_the_container_start() {
    let mut w = worker(ProbeKind::Readiness, 1, 3, 15);
    let early = w.tick(Some(&seen("a", true)), at(103));
    assert_eq!((early.probe, early.next), (false, S(10)));
    let soon = w.tick(Some(&seen("a", true)), at(113));
    assert_eq!((soon.probe, soon.next), (false, S(2)));
    assert!(w.tick(Some(&seen("a", true)), at(115)).probe);
}

#[test]
fn a_jump_of_the_wall_clock_does_not_move_the_delay() {
    let mut w = worker(ProbeKind::Readiness, 1, 3, 15);
    w.tick(Some(&seen("a", true)), at(100));
    let jumped = Now { mono: Mono(S(101)), wall: Wall::from_secs(1_000_000) };
    assert!(!w.tick(Some(&seen("a", true)), jumped).probe);
}

#[test]
fn errors_are_tried_three_times_then_discarded_without_a_trace() {
    let (mut w, s) = (worker(ProbeKind::Readiness, 1, 1, 0), seen("a", true));
    assert_eq!(say(&mut w, &s, Outcome::Success), Some(true));
    let again: Vec<bool> = (0..4).map(|_| w.outcome(&s.id, Outcome::Error).again).collect();
    assert_eq!(again, [true, true, false, true]);
    assert_eq!(say(&mut w, &s, Outcome::Success), None, "state was left alone");
}

#[test]
fn a_dead_container_is_not_ready_but_its_liveness_is_not_judged() {
    let dead = Seen { running: false, ..seen("a", false) };
    let mut readiness = worker(ProbeKind::Readiness, 1, 3, 0);
    assert_eq!(say(&mut readiness, &seen("a", true), Outcome::Success), Some(true));
    let change = readiness.tick(Some(&dead), at(300)).change;
    assert_eq!(change.map(|c| c.good), Some(false));
    assert_eq!(worker(ProbeKind::Liveness, 1, 3, 0).tick(Some(&dead), at(300)).change, None);
}

#[test]
fn words_about_a_replaced_instance_are_ignored_and_the_slate_is_clean() {
    let mut w = worker(ProbeKind::Readiness, 3, 3, 0);
    say(&mut w, &seen("a", true), Outcome::Success);
    say(&mut w, &seen("a", true), Outcome::Success);
    assert!(w.tick(Some(&seen("b", true)), at(200)).probe);
    assert_eq!(w.outcome(&"a".into(), Outcome::Success), Answer::default());
    assert_eq!(say(&mut w, &seen("b", true), Outcome::Success), None);
    assert!(!worker(ProbeKind::Readiness, 1, 1, 0).tick(None, at(0)).probe);
}

#[test]
fn what_goes_on_in_termination() {
    use ContainerKind::{Regular, Sidecar};
    use ProbeKind::{Liveness, Readiness, Startup};
    for (kind, of, want) in [
        (Readiness, Regular, true),
        (Liveness, Regular, false),
        (Startup, Regular, false),
        (Liveness, Sidecar, true),
        (Startup, Sidecar, true),
    ] {
        assert_eq!(goes_on_in_termination(kind, of), want, "{kind:?} {of:?}");
    }
}

#[test]
fn the_first_tick_is_spread_only_soon_after_the_agent_starts() {
    assert_eq!(first_tick_spread(S(10), S(3)), Some(S(10)));
    assert_eq!(first_tick_spread(S(10), S(10)), None);
}
