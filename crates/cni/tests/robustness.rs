//! What goes wrong: too many at once, killed in between, nonsense. Nothing is left, and who is asked says what it was.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)]

mod support;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use cni::{Environment, INPUT_MAX};
use serde_json::{Value, json};
use support::{Container, Machine, bridge, can_run, portmap};

fn host_local(dir: &std::path::Path, subnet: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": dir, "ranges": [[{"subnet": subnet}]]}})
}

fn environment(verb: &str, container: &str) -> Environment {
    Environment {
        command: verb.into(),
        container: container.into(),
        namespace: "/run/netns/x".into(),
        interface: "eth0".into(),
        ..Environment::default()
    }
}

#[test]
fn ten_thousand_at_once_get_ten_thousand_addresses() {
    const THREADS: usize = 8;
    const EACH: usize = 1250;
    let dir = tempfile::tempdir().unwrap();
    let config = host_local(dir.path(), "10.0.0.0/16").to_string();
    let given: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let config = &config;
                scope.spawn(move || {
                    let one = |at: usize| {
                        let environment = environment("ADD", &format!("c{thread}-{at}"));
                        let result =
                            cni::call("host-local", &environment, config.as_bytes()).unwrap().unwrap();
                        result["ips"][0]["address"].as_str().unwrap().to_owned()
                    };
                    (0..EACH).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let once: BTreeSet<&String> = given.iter().collect();
    assert_eq!((given.len(), once.len()), (THREADS * EACH, THREADS * EACH));
    // Who has one does not get a second.
    let again = cni::call("host-local", &environment("ADD", "c0-0"), config.as_bytes()).unwrap_err();
    assert_eq!(again.code, 102, "{again}");
    let mut gc = host_local(dir.path(), "10.0.0.0/16");
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "c3-7", "ifname": "eth0"}]);
    let collect = Environment { command: "GC".into(), ..Environment::default() };
    cni::call("host-local", &collect, gc.to_string().as_bytes()).unwrap();
    let left = std::fs::read_dir(dir.path().join("pods")).unwrap().flatten();
    let left = left.filter(|entry| entry.file_name().to_str().unwrap().starts_with("10.")).count();
    assert_eq!(left, 1);
    cni::call("host-local", &environment("CHECK", "c3-7"), config.as_bytes()).unwrap();
}

#[test]
fn a_full_range_is_told_before_and_when_somebody_asks() {
    let dir = tempfile::tempdir().unwrap();
    let config = host_local(dir.path(), "10.0.0.0/29").to_string();
    let status = environment("STATUS", "");
    for at in 0..5 {
        cni::call("host-local", &status, config.as_bytes()).unwrap();
        cni::call("host-local", &environment("ADD", &format!("c{at}")), config.as_bytes()).unwrap();
    }
    assert_eq!(cni::call("host-local", &status, config.as_bytes()).unwrap_err().code, 50);
    let full = cni::call("host-local", &environment("ADD", "c9"), config.as_bytes()).unwrap_err();
    assert_eq!((full.code, full.message.as_str()), (101, "no address is left in 10.0.0.1-10.0.0.6"));
    cni::call("host-local", &environment("DEL", "c2"), config.as_bytes()).unwrap();
    let result = cni::call("host-local", &environment("ADD", "c9"), config.as_bytes()).unwrap().unwrap();
    assert_eq!(result["ips"][0]["address"], "10.0.0.4/29");
    // Two ranges, one of them full: what was taken of the other goes back.
    let mut both = host_local(dir.path(), "10.0.0.0/29");
    both["ipam"]["ranges"] = json!([[{"subnet": "10.7.0.0/24"}], [{"subnet": "10.0.0.0/29"}]]);
    let half = cni::call("host-local", &environment("ADD", "c10"), both.to_string().as_bytes()).unwrap_err();
    assert_eq!(half.code, 101);
    assert!(!dir.path().join("pods/10.7.0.2").exists());
}

/// What a killed one wrote aside becomes nobody's address.
#[test]
fn one_that_was_killed_while_it_wrote_changes_no_owner() {
    let dir = tempfile::tempdir().unwrap();
    let config = host_local(dir.path(), "10.0.0.0/24").to_string();
    cni::call("host-local", &environment("ADD", "one"), config.as_bytes()).unwrap();
    let (first, aside) = (dir.path().join("pods/10.0.0.2"), dir.path().join("pods/.reserving"));
    std::fs::hard_link(&first, &aside).unwrap();
    cni::call("host-local", &environment("ADD", "two"), config.as_bytes()).unwrap();
    assert_eq!(std::fs::read_to_string(&first).unwrap(), "one\r\neth0");
    assert_eq!(std::fs::read_to_string(dir.path().join("pods/10.0.0.3")).unwrap(), "two\r\neth0");
}

#[test]
fn coming_and_going_leaves_nothing() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let configs = [bridge(&machine), portmap(json!([{"hostPort": 80, "containerPort": 80}]))];
    let warm = Container::new("warm");
    let result = machine.add(&configs, &warm).unwrap();
    machine.del(&configs, &result, &warm).unwrap();
    let before = machine.inventory();
    let container = Container::new("c");
    for _ in 0..40 {
        let result = machine.add(&configs, &container).unwrap();
        machine.del(&configs, &result, &container).unwrap();
    }
    assert_eq!(machine.inventory(), before);
}

/// Forty at once, and then none.
#[test]
fn many_at_once_do_not_stand_in_each_others_way() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let configs = [bridge(&machine), portmap(json!([]))];
    let containers: Vec<Container> = (0..20).map(|at| Container::new(&format!("c{at}"))).collect();
    let results: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            containers.iter().map(|of| scope.spawn(|| machine.add(&configs, of).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let addresses: BTreeSet<String> = results.iter().map(|r| r["ips"][0]["address"].to_string()).collect();
    assert_eq!(addresses.len(), 20);
    for (of, result) in containers.iter().zip(&results) {
        machine.each("CHECK", &configs, result, of).unwrap();
    }
    std::thread::scope(|scope| {
        for (of, result) in containers.iter().zip(&results) {
            let (machine, configs) = (&machine, &configs);
            scope.spawn(move || machine.del(configs, result, of).unwrap());
        }
    });
    let left = machine.inventory();
    assert!(!left.contains("vethc") && !left.contains("pods: "), "{left}");
    assert!(machine.files().is_empty());
}

/// Killed at any moment, it leaves nothing that a garbage collection does not find; and what lives is left alone.
#[test]
fn what_a_killed_one_leaves_is_collected() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let configs = [bridge(&machine), portmap(json!([{"hostPort": 80, "containerPort": 80}]))];
    let alive = Container::new("alive");
    let kept = machine.add(&configs[..1], &alive).unwrap();
    let before = machine.inventory();
    let mut cut = 0;
    for at in 0..24_u64 {
        let container = Container::new(&format!("dead{at}"));
        let mut child = machine
            .ns
            .command(std::env::current_exe().unwrap().to_str().unwrap())
            .args(["--exact", "the_one_that_is_killed", "--ignored", "--nocapture"])
            .env("CNI_TEST_CONFIGS", json!(configs).to_string())
            .env("CNI_TEST_ID", &container.id)
            .env("CNI_TEST_NETNS", container.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It says when it begins; from there on it is a matter of a millisecond or two.
        let out = child.stdout.take().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(out));
        while lines.next().is_some_and(|line| !line.unwrap().contains("begins")) {}
        std::thread::sleep(Duration::from_micros(at * 250));
        child.kill().unwrap();
        child.wait().unwrap();
        cut += usize::from(machine.inventory() != before);
        machine.gc(&configs, &[&alive]).unwrap();
        assert_eq!(machine.inventory(), before, "after {at}");
    }
    assert!(cut > 0, "nobody was killed at work");
    machine.each("CHECK", &configs[..1], &kept, &alive).unwrap();
}

#[test]
#[ignore = "run by what_a_killed_one_leaves_is_collected"]
fn the_one_that_is_killed() {
    let of = |name: &str| std::env::var(name).unwrap();
    let configs: Vec<Value> = serde_json::from_str(&of("CNI_TEST_CONFIGS")).unwrap();
    let environment =
        Environment { namespace: of("CNI_TEST_NETNS"), ..environment("ADD", &of("CNI_TEST_ID")) };
    println!("begins");
    let mut before = None;
    for mut config in configs {
        if let Some(before) = before {
            config["prevResult"] = before;
        }
        let plugin = config["type"].as_str().unwrap().to_owned();
        before = cni::call(&plugin, &environment, config.to_string().as_bytes()).unwrap();
    }
}

/// Nonsense is refused by name, and leaves nothing.
#[test]
fn nonsense_is_refused_with_the_codes_of_the_contract() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let container = Container::new("c");
    machine.ns.ip("link add notbridge type veth peer name other\n").unwrap();
    let before = machine.inventory();
    let change = |key: &str, value: Value| {
        let mut config = bridge(&machine);
        config[key] = value;
        config
    };
    let ipam = |value: Value| change("ipam", value);
    let rows = [
        (change("cniVersion", json!("7.0.0")), 1),
        (change("bridge", json!("notbridge")), 7),
        (change("bridge", json!(["cni0"])), 7),
        (change("name", json!("a/../../etc")), 7),
        (ipam(json!({"type": "../../bin/sh"})), 7),
        (ipam(json!({"type": "nobody"})), 7),
        (ipam(json!({"type": "host-local"})), 7),
        (ipam(json!({"type": "static"})), 7),
        // An address that the kernel will not have.
        (ipam(json!({"type": "static", "addresses": [{"address": "ff0e::1/64"}]})), 100),
        // A route by somebody whom nobody can reach.
        (
            ipam(
                json!({"type": "static", "addresses": [{"address": "10.1.0.5/24"}], "routes": [{"dst": "10.2.0.0/16", "gw": "172.16.0.1"}]}),
            ),
            100,
        ),
    ];
    for (config, code) in rows {
        let error = machine.call("ADD", &config, &container).expect_err(&config.to_string());
        assert_eq!(error.code, code, "{config}\n{error}");
        // A bridge that was made stays: others may be on it.
        let _ = machine.ns.ip("link del cni0\n");
        assert_eq!(machine.inventory(), before, "{config}");
    }
    let inputs: [(&[u8], u64); 5] =
        [(b"", 6), (b"[]", 6), (b"{\"name\":", 6), (&[b' '; 10 << 20], 6), (&b"[".repeat(INPUT_MAX), 6)];
    for (input, code) in inputs {
        let error = cni::call("bridge", &container.environment("ADD"), input).unwrap_err();
        assert_eq!(error.code, code, "{error}");
    }
    let nowhere = Environment { namespace: "/run/netns/gone".into(), ..container.environment("ADD") };
    let input = bridge(&machine).to_string();
    let error = machine.ns.within(|| cni::call("bridge", &nowhere, input.as_bytes())).unwrap_err();
    assert_eq!(error.code, 3, "{error}");
    // The machine itself is no container.
    let own = Environment {
        namespace: format!("/proc/{}/ns/net", machine.ns.pid()),
        ..container.environment("ADD")
    };
    let error = machine.ns.within(|| cni::call("bridge", &own, input.as_bytes())).unwrap_err();
    assert_eq!(error.code, 4, "{error}");
    // A device of that name is there already.
    container.ns.ip("link add eth0 type veth peer name x\n").unwrap();
    let error = machine.call("ADD", &bridge(&machine), &container).unwrap_err();
    assert_eq!(error.code, 102, "{error}");
    assert!(machine.files().is_empty());
}

#[test]
fn a_program_prints_what_the_contract_says() {
    let version =
        cni::answer("bridge", &Environment { command: "VERSION".into(), ..Environment::default() }, b"");
    let value: Value = serde_json::from_str(&version.output).unwrap();
    assert!(version.is_success);
    assert_eq!(value["supportedVersions"].as_array().unwrap().last(), Some(&json!("1.1.0")));
    let answer =
        cni::answer("bridge", &environment("ADD", "x"), br#"{"cniVersion": "0.4.0", "name": "a b"}"#);
    let value: Value = serde_json::from_str(&answer.output).unwrap();
    assert_eq!(
        (answer.is_success, &value["cniVersion"], &value["code"]),
        (false, &json!("0.4.0"), &json!(7))
    );
    assert!(value["msg"].as_str().unwrap().starts_with("name: "));
    assert!(cni::names().count() == 9 && Command::new("true").status().is_ok());
}
