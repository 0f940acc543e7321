use super::*;
use crate::testing::{Draft, Ran, World, at, draft, refused, said};

/// 2026-11-18 12:00:00 UTC, a Wednesday.
const NOON: u64 = 1_795_003_200;

fn cron(schedule: &str) -> Draft {
    let template = json!({"metadata": {"labels": {"app": "a"}, "annotations": {"note": "x"}},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let spec = json!({"schedule": schedule, "concurrencyPolicy": "Allow", "suspend": false,
        "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1, "jobTemplate": template});
    draft(CRON_JOBS, "cj").set("/spec", spec).created(i64::try_from(NOON).unwrap_or_default())
}

fn job(name: &str) -> Draft {
    let owner = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "cj", "uid": "u-cj", "controller": true}]);
    draft(JOBS, name).set("/metadata/ownerReferences", owner)
}

/// A Job that ended so many seconds after noon.
fn ended(name: &str, condition: &str, at: u64) -> Draft {
    let time = timestamp(Wall::from_secs((NOON + at).cast_signed()));
    let job = job(name)
        .set("/status/startTime", json!(time))
        .set("/status/conditions", json!([{"type": condition, "status": "True"}]));
    if condition == "Complete" { job.set("/status/completionTime", json!(time)) } else { job }
}

fn active(names: &[&str]) -> Value {
    let reference =
        |name: &&str| json!({"kind": "Job", "namespace": "ns", "name": name, "uid": format!("u-{name}")});
    names.iter().map(reference).collect()
}

fn controller() -> CronJobs {
    CronJobs { zone: TimeZone::UTC, not_before: BTreeMap::new() }
}

/// A sync so many seconds after noon.
fn sync(world: &mut World, after: u64) -> Ran {
    world.sync(&mut controller(), "cj", at(NOON + after))
}

fn status(world: &World) -> Value {
    world.get(CRON_JOBS, "cj").value()["status"].take()
}

/// Unix minutes at noon.
fn minute(after: u64) -> String {
    format!("cj-{}", (NOON / 60) + after)
}

#[test]
fn a_job_is_made_when_it_is_due_and_once_only() {
    let mut world = World::new(cron("*/5 * * * ?"));
    let ran = sync(&mut world, 10);
    assert_eq!((ran.said.len(), ran.wake), (0, Some(Duration::from_millis(290_100))));
    let ran = sync(&mut world, 300);
    assert_eq!(
        ran.said,
        [
            "create jobs.batch in ns".to_owned(),
            "update cronjobs.batch/status ns/cj".into(),
            format!("Normal SuccessfulCreate: Created job {}", minute(5)),
        ]
    );
    assert_eq!(ran.wake, Some(Duration::from_millis(300_100)));
    let made = world.get(JOBS, &minute(5)).value();
    let metadata = &made["metadata"];
    assert_eq!(metadata["annotations"], json!({"note": "x", SCHEDULED: "2026-11-18T12:05:00Z"}));
    assert_eq!(
        (&metadata["labels"]["app"], &metadata["ownerReferences"][0]["kind"]),
        (&json!("a"), &json!("CronJob"))
    );
    assert_eq!(status(&world)["active"][0]["name"], minute(5));
    assert_eq!(status(&world)["lastScheduleTime"], "2026-11-18T12:05:00Z");
    assert!(sync(&mut world, 301).said.is_empty(), "one minute has one Job");
}

#[test]
fn faked_hours_make_a_job_each_and_keep_three() {
    let mut world = World::new(cron("0 * * * *").set("/spec/timeZone", json!("Asia/Kolkata")));
    let mut controller = controller();
    let (mut now, mut made) = (NOON, 0);
    for _ in 0..48 {
        let ran = world.sync(&mut controller, "cj", at(now));
        made += ran.said.iter().filter(|line| line.starts_with("create")).count();
        for job in world.cache.list(JOBS, "ns").iter().filter(|job| job.value()["status"].is_null()) {
            world.put(ended(&job.meta.name, "Complete", now - NOON + 1));
        }
        world.sync(&mut controller, "cj", at(now));
        now += ran.wake.map_or(3600, |wake| wake.as_secs() + 1);
    }
    assert_eq!(made, 47, "the first look is half an hour early");
    assert_eq!(world.cache.list(JOBS, "ns").len(), 3);
    let last = &world.cache.list(JOBS, "ns")[2].value()["metadata"]["annotations"];
    assert!(last.is_null() && status(&world)["active"].is_null());
    assert!(status(&world)["lastScheduleTime"].as_str().unwrap_or_default().ends_with(":30:00Z"));
}

#[test]
fn what_was_missed_runs_once_if_it_is_not_too_late() {
    let deadline = |seconds: i64| cron("0 * * * *").set("/spec/startingDeadlineSeconds", json!(seconds));
    let hour = 3600;
    let rows = [
        ("one", cron("0 * * * *"), hour + 1, Some(60), ""),
        ("several: the last", cron("0 * * * *"), 5 * hour + 1800, Some(300), ""),
        ("in time", deadline(60), hour + 59, Some(60), ""),
        ("older than the deadline is not looked for", deadline(60), hour + 60, None, ""),
        ("very many", cron("* * * * *"), 3 * hour, Some(180), "Warning TooManyMissedTimes"),
        (
            "very many, with a deadline",
            cron("* * * * *").set("/spec/startingDeadlineSeconds", json!(180)),
            3 * hour,
            Some(180),
            "",
        ),
        ("uneven", cron("30 6-16/4 * * 1-5"), 8 * 24 * hour, Some(8 * 24 * 60 - 90), ""),
    ];
    for (row, cron, after, want, warning) in rows {
        let mut world = World::new(cron);
        let ran = sync(&mut world, after);
        let made = world.cache.list(JOBS, "ns").first().map(|job| job.meta.name.to_string());
        assert_eq!(made, want.map(minute), "{row}");
        let warned = ran.said.iter().find(|line| line.starts_with("Warning")).cloned().unwrap_or_default();
        assert!(warned.starts_with(warning) && warning.is_empty() == warned.is_empty(), "{row}: {warned}");
    }
}

#[test]
fn the_policy_says_what_becomes_of_a_job_that_still_runs() {
    let running = |policy: &str| {
        let cron = cron("* * * * *").set("/spec/concurrencyPolicy", json!(policy));
        World::new([cron.set("/status/active", active(&["old"])), job("old")])
    };
    let mut world = running("Allow");
    sync(&mut world, 60);
    assert_eq!(status(&world)["active"].as_array().map(Vec::len), Some(2));
    let mut world = running("Forbid");
    let ran = sync(&mut world, 60);
    assert_eq!(
        ran.said,
        [
            "Normal JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid"
        ]
    );
    assert!(status(&world)["lastScheduleTime"].is_null(), "its time is not used up");
    world.put(ended("old", "Complete", 70));
    sync(&mut world, 75);
    assert_eq!(status(&world)["active"][0]["name"], minute(1), "so it runs later");
    let mut world = running("Replace");
    let ran = sync(&mut world, 60);
    assert_eq!(
        ran.said,
        [
            "delete jobs.batch ns/old".to_owned(),
            "create jobs.batch in ns".into(),
            "update cronjobs.batch/status ns/cj".into(),
            "Normal SuccessfulDelete: Deleted job old".into(),
            format!("Normal SuccessfulCreate: Created job {}", minute(1)),
        ]
    );
    let names: Vec<String> =
        world.cache.list(JOBS, "ns").iter().map(|job| job.meta.name.to_string()).collect();
    assert_eq!((names, status(&world)["active"].as_array().map(Vec::len)), (vec![minute(1)], Some(1)));
}

#[test]
fn jobs_that_end_or_vanish_leave_the_status() {
    let rows = [
        (
            "complete",
            vec![ended("j", "Complete", 5)],
            "Normal SawCompletedJob: Saw completed job: j, condition: Complete",
        ),
        (
            "failed",
            vec![ended("j", "Failed", 5)],
            "Normal SawCompletedJob: Saw completed job: j, condition: Failed",
        ),
        ("gone", vec![], "Normal MissingJob: Active job went missing: j"),
    ];
    for (row, jobs, said) in rows {
        let cron = cron("0 0 * * *").set("/status/active", active(&["j"]));
        let mut world = World::new(jobs.into_iter().chain([cron]));
        let ran = sync(&mut world, 30);
        assert!(ran.said.contains(&said.to_owned()), "{row}: {:?}", ran.said);
        let written = status(&world);
        assert!(written["active"].is_null(), "{row}: {written}");
        let since = (row == "complete").then_some("2026-11-18T12:00:05Z");
        assert_eq!(written["lastSuccessfulTime"].as_str(), since, "{row}");
    }
    let mut world = World::new([cron("0 0 * * *"), job("j")]);
    let said = sync(&mut world, 30).said;
    assert_eq!(said, ["Warning UnexpectedJob: Saw a job that the controller did not create or forgot: j"]);
    let elsewhere = cron("0 0 * * *").set("/status/active", active(&["j"]));
    let world = World::new(elsewhere);
    let asked = world.reconcile(&mut controller(), "cj", at(NOON));
    let plan = world.settle(&mut controller(), "cj", at(NOON), &asked, &refused(Why::Lost, "timeout"));
    assert_eq!(plan.failure.as_deref(), Some("reading Job j: timeout"), "what is not known is not forgotten");
}

#[test]
fn only_so_many_that_ended_stay() {
    let jobs = ["a", "b", "c", "d", "e"].iter().zip(1..).map(|(name, at)| ended(name, "Complete", at));
    let failed = ["x", "y"].iter().zip([9, 8]).map(|(name, at)| ended(name, "Failed", at));
    let mut world = World::new(jobs.chain(failed).chain([cron("0 0 * * *")]));
    let ran = sync(&mut world, 30);
    assert_eq!(ran.said[..3], ["delete jobs.batch ns/a", "delete jobs.batch ns/b", "delete jobs.batch ns/y"]);
    assert!(ran.said.contains(&"Normal SuccessfulDelete: Deleted job y".to_owned()));
    assert_eq!(world.cache.list(JOBS, "ns").len(), 4);
    let suspended =
        cron("* * * * *").set("/spec/suspend", json!(true)).set("/spec/successfulJobsHistoryLimit", json!(0));
    let mut world = World::new([suspended, ended("a", "Complete", 1)]);
    let ran = sync(&mut world, 600);
    assert_eq!(
        (ran.wake, world.cache.list(JOBS, "ns").len()),
        (None, 0),
        "history is kept while it is suspended"
    );
}

#[test]
fn a_job_of_that_name_is_taken_over_only_if_it_is_ours() {
    for (owner, takes) in [("u-cj", true), ("other", false)] {
        let there = job(&minute(1)).set(
            "/metadata/ownerReferences",
            json!([{"kind": "CronJob", "apiVersion": "batch/v1",
            "name": "cj", "uid": owner, "controller": true}]),
        );
        let mut world = World::new([cron("* * * * *"), there]);
        sync(&mut world, 60);
        assert_eq!(!status(&world)["active"].is_null(), takes);
        assert_eq!(!status(&world)["lastScheduleTime"].is_null(), takes);
    }
}

#[test]
fn a_schedule_that_makes_no_sense_is_told() {
    let zone = |zone: &str| cron("* * * * *").set("/spec/timeZone", json!(zone));
    for (cron, want) in [
        (
            cron("* * * *"),
            "Warning UnparseableSchedule: unparseable schedule: \"* * * *\" : expected exactly 5 fields, found 4: [* * * *]",
        ),
        (
            cron("59 23 31 2 *"),
            "Warning InvalidSchedule: invalid schedule: 59 23 31 2 * : time difference between two schedules is less than 1 second",
        ),
        (
            zone("Mars/Olympus"),
            "Warning UnknownTimeZone: invalid timeZone: \"Mars/Olympus\": unknown time zone Mars/Olympus",
        ),
        (
            cron("TZ=UTC 0 0 * * *"),
            "Warning UnsupportedSchedule: CRON_TZ or TZ used in schedule \"TZ=UTC 0 0 * * *\" is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
        ),
        (
            cron("* * * * *").set("/spec/startingDeadlineSeconds", json!("x")),
            "Warning Unreadable: spec.startingDeadlineSeconds is no number",
        ),
    ] {
        assert_eq!(sync(&mut World::new(cron), 600).said, [want]);
    }
}

#[test]
fn a_job_that_cannot_be_made_is_tried_again() {
    let world = World::new(cron("* * * * *"));
    let plan = world.reconcile(&mut controller(), "cj", at(NOON + 60));
    let after = |why| said(&world.settle(&mut controller(), "cj", at(NOON + 60), &plan, &refused(why, "no")));
    assert_eq!(after(Why::Forbidden), ["Warning FailedCreate: Error creating job: no"]);
    assert!(after(Why::NamespaceTerminating).is_empty());
}

#[test]
fn a_new_schedule_has_missed_nothing() {
    let (old, new) = (cron("0 0 1 1 *"), cron("0 * * * *"));
    let mut world = World::new(new.clone());
    let mut controller = controller();
    let change = Change { old: Some(Arc::new(old.object())), new: Some(Arc::new(new.object())) };
    controller.observe(&change, at(NOON + 5400));
    let ran = world.sync(&mut controller, "cj", at(NOON + 5400));
    assert_eq!((ran.said.len(), ran.wake), (0, Some(Duration::from_millis(1_800_100))));
    world.sync(&mut controller, "cj", at(NOON + 7200));
    assert_eq!(world.cache.list(JOBS, "ns").len(), 1);
}
