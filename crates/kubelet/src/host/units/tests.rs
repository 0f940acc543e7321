#![allow(clippy::unwrap_used)]

use fixture::{FakeSystemd, Mood};
use kubelet_core::cgroup::all_pods;

use super::*;

struct Bench {
    _dir: tempfile::TempDir,
    fake: FakeSystemd,
    units: Units,
}

/// systemd at the system bus, or at its own socket only.
fn bench(at_bus: bool) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeSystemd::start(dir.path()).unwrap();
    let (there, nowhere) = (fake.socket().to_owned(), dir.path().join("nowhere"));
    let (bus, systemd) = if at_bus { (there, nowhere) } else { (nowhere, there) };
    let places = Places { bus, systemd, ..Places::default() };
    Bench { _dir: dir, fake, units: Units::new(places, true) }
}

fn limits(memory: i64) -> Limits {
    Limits { memory: Some(memory), cpu_shares: Some(1024), ..Limits::default() }
}

#[tokio::test]
async fn a_slice_is_made_changed_and_stopped() {
    for at_bus in [true, false] {
        let Bench { fake, units, .. } = &bench(at_bus);
        let all = all_pods("").unwrap();
        units.make(&all, &limits(4096)).await.unwrap();
        assert_eq!(
            fake.asked(),
            [
                "Get org.freedesktop.systemd1.Manager Version",
                "StartTransientUnit kubepods.slice replace [Description=Pods of Kubernetes: kubepods.slice \
                 Wants=[-.slice] MemoryAccounting=true CPUAccounting=true IOAccounting=true TasksAccounting=true \
                 DefaultDependencies=false MemoryMax=4096 CPUWeight=39] []",
            ]
        );
        units.change(&all, &limits(8192)).await.unwrap();
        assert_eq!(
            fake.asked(),
            ["SetUnitProperties kubepods.slice true [MemoryMax=8192 CPUWeight=39]"],
            "the version is asked for once"
        );
        units.stop(&all).await.unwrap();
        assert_eq!(fake.asked(), ["StopUnit kubepods.slice replace", "ResetFailedUnit kubepods.slice"]);
        assert_eq!(fake.units(), [""; 0]);
        units.stop(&all).await.unwrap();
    }
}

#[tokio::test]
async fn one_that_runs_already_is_given_its_limits_and_goes_on_running() {
    let Bench { fake, units, .. } = &bench(true);
    let all = all_pods("").unwrap();
    units.make(&all, &Limits::default()).await.unwrap();
    let _before = fake.asked();
    units.make(&all, &limits(4096)).await.unwrap();
    let asked = fake.asked();
    assert!(asked[0].starts_with("StartTransientUnit kubepods.slice"), "{asked:?}");
    assert_eq!(
        asked[1..],
        [
            "SetUnitProperties kubepods.slice true [MemoryMax=4096 CPUWeight=39]",
            "StartUnit kubepods.slice replace"
        ]
    );
    assert_eq!(fake.unit("kubepods.slice").unwrap()["MemoryMax"], "4096");
}

#[tokio::test]
async fn a_job_that_fails_is_named() {
    let Bench { fake, units, .. } = &bench(true);
    fake.set_mood(Mood::Ends("timeout"));
    let error = units.make(&all_pods("").unwrap(), &Limits::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cgroupDriver systemd: make kubepods.slice: systemd's job ended as \"timeout\""
    );
}

#[tokio::test]
async fn a_bus_that_is_restarted_is_asked_again() {
    let Bench { fake, units, .. } = &bench(true);
    fake.set_mood(Mood::Breaks);
    units.make(&all_pods("").unwrap(), &Limits::default()).await.unwrap();
    assert_eq!(fake.units(), ["kubepods.slice"]);
}

#[tokio::test]
async fn one_that_hangs_costs_its_time_and_is_named() {
    let Bench { fake, units, _dir } = bench(true);
    let units = units.with_limit(Duration::from_millis(50));
    fake.set_mood(Mood::Hangs);
    let error = units.change(&all_pods("").unwrap(), &limits(1)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cgroupDriver systemd: change kubepods.slice: systemd did not answer within 50ms"
    );
    fake.set_mood(Mood::Well);
    units.make(&all_pods("").unwrap(), &limits(1)).await.unwrap();
}

#[tokio::test]
async fn without_systemd_both_places_are_named() {
    let places = Places { bus: "/nowhere/bus".into(), systemd: "/nowhere/own".into(), ..Places::default() };
    let units = Units::new(places, true);
    let error = units.make(&all_pods("").unwrap(), &limits(1)).await.unwrap_err().to_string();
    for part in ["cgroupDriver systemd", "make kubepods.slice", "system bus /nowhere/bus", "/nowhere/own"] {
        assert!(error.contains(part), "{error}");
    }
}
