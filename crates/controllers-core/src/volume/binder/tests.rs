use serde_json::{Value, json};

use super::*;
use crate::plan::Why;
use crate::testing::{Draft, NAMESPACE, World, at, draft, pod, refused, said};

fn claim(name: &str) -> Draft {
    draft(PERSISTENT_VOLUME_CLAIMS, name)
        .set("/spec/accessModes", json!(["ReadWriteOnce"]))
        .set("/spec/resources/requests/storage", json!("1Gi"))
        .set("/spec/storageClassName", json!(""))
        .phase("Pending")
}

fn classed(name: &str) -> Draft {
    claim("c").set("/spec/storageClassName", json!(name))
}

fn volume(name: &str, size: &str) -> Draft {
    draft(PERSISTENT_VOLUMES, name)
        .set("/spec/accessModes", json!(["ReadWriteOnce"]))
        .set("/spec/capacity/storage", json!(size))
        .set("/spec/persistentVolumeReclaimPolicy", json!("Retain"))
        .set("/spec/hostPath/path", json!("/data"))
        .phase("Available")
}

fn meant_for(volume: Draft, claim: &str, uid: &str) -> Draft {
    let mut meant = json!({"namespace": NAMESPACE, "name": claim});
    if !uid.is_empty() {
        meant["uid"] = json!(uid);
    }
    volume.set("/spec/claimRef", meant)
}

fn class(name: &str, provisioner: &str, mode: &str) -> Draft {
    draft(STORAGE_CLASSES, name)
        .set("/provisioner", json!(provisioner))
        .set("/volumeBindingMode", json!(mode))
}

fn bound(claim: Draft, volume: &str) -> Draft {
    claim
        .annotation("pv.kubernetes.io/bind-completed", "yes")
        .set("/spec/volumeName", json!(volume))
        .phase("Bound")
}

/// A name, what is in the cache, what only the API server knows, and what is done.
type Asked<'a> = (&'a str, Vec<Draft>, Vec<Draft>, Vec<&'a str>);

/// Looks at a key and carries out what is planned, as the agent does; says all of it. What is asked for is answered from `live`,
/// which the cache does not know.
fn play(world: &mut World, controller: &mut dyn Controller, key: &Key, live: &[Draft]) -> Vec<String> {
    let mut plan = controller.reconcile(&world.cache, key, at(1000));
    let (mut lines, mut done) = (said(&plan), Done::default());
    while plan.has_acts() {
        done.last = done.acts.len();
        done.rounds += 1;
        for act in plan.acts().cloned().collect::<Vec<_>>() {
            let outcome = outcome(world, &act, live);
            done.acts.push((act, outcome));
        }
        plan = controller.settle(&world.cache, key, at(1000), &done);
        lines.extend(said(&plan));
    }
    lines.extend(plan.failure.map(|why| format!("failed: {why}")));
    lines
}

/// The cache does not see what was written before the sync is over.
fn outcome(world: &mut World, act: &Act, live: &[Draft]) -> Outcome {
    match act {
        Act::Get { path } => {
            let all = live.iter().map(Draft::object);
            let mut found =
                all.filter(|one| one.meta.resource.object_path(&one.meta.namespace, &one.meta.name) == *path);
            match found.next() {
                Some(object) => Outcome::Done(object.json().clone()),
                None => refused(Why::NotFound, "not found"),
            }
        }
        Act::Update { .. } => {
            world.version += 1;
            let mut body = act.body();
            body["metadata"]["resourceVersion"] = json!(world.version.to_string());
            Outcome::Done(body.to_string().into_bytes().into())
        }
        Act::Create { .. } => {
            let mut body = act.body();
            body["metadata"]["uid"] = json!("u-made");
            Outcome::Done(body.to_string().into_bytes().into())
        }
        _ => Outcome::Done(bytes::Bytes::new()),
    }
}

fn of_claims(objects: Vec<Draft>, live: &[Draft]) -> Vec<String> {
    let mut claims = Claims::new(&Tuning::default());
    play(&mut World::new(objects), &mut claims, &Key::new(NAMESPACE, "c"), live)
}

fn of_volumes(objects: Vec<Draft>, live: &[Draft]) -> Vec<String> {
    let mut volumes = Volumes::new(&Tuning::default());
    play(&mut World::new(objects), &mut volumes, &Key::new("", "v"), live)
}

fn binding(volume: &str) -> [String; 4] {
    [
        format!("update persistentvolumes {volume}"),
        format!("update persistentvolumes/status {volume}"),
        "update persistentvolumeclaims ns/c".to_owned(),
        "update persistentvolumeclaims/status ns/c".to_owned(),
    ]
}

#[test]
fn a_claim_gets_the_smallest_volume_with_the_fewest_modes() {
    let many = json!(["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]);
    let rows: Vec<(&str, Draft, Vec<Draft>, Option<&str>)> = vec![
        ("the smallest", claim("c"), vec![volume("big", "5Gi"), volume("fit", "2Gi")], Some("fit")),
        ("the first of equals", claim("c"), vec![volume("b", "2Gi"), volume("a", "2Gi")], Some("a")),
        (
            "fewest modes before size",
            claim("c"),
            vec![volume("many", "1Gi").set("/spec/accessModes", many.clone()), volume("one", "9Gi")],
            Some("one"),
        ),
        (
            "a superset of modes",
            claim("c"),
            vec![volume("many", "1Gi").set("/spec/accessModes", many)],
            Some("many"),
        ),
        ("too small", claim("c"), vec![volume("v", "1023Mi")], None),
        (
            "another mode",
            claim("c").set("/spec/accessModes", json!(["ReadWriteMany"])),
            vec![volume("v", "1Gi")],
            None,
        ),
        ("not free", claim("c"), vec![volume("v", "1Gi").phase("Released")], None),
        ("on its way out", claim("c"), vec![volume("v", "1Gi").deleting(true)], None),
        ("block", claim("c"), vec![volume("v", "1Gi").set("/spec/volumeMode", json!("Block"))], None),
        (
            "another class",
            claim("c"),
            vec![volume("v", "1Gi").set("/spec/storageClassName", json!("fast"))],
            None,
        ),
        (
            "the old annotation of classes",
            classed("").annotation("volume.beta.kubernetes.io/storage-class", "fast"),
            vec![volume("v", "1Gi").set("/spec/storageClassName", json!("fast"))],
            Some("v"),
        ),
        (
            "another attributes class",
            claim("c"),
            vec![volume("v", "1Gi").set("/spec/volumeAttributesClassName", json!("gold"))],
            None,
        ),
        (
            "selected",
            claim("c").set("/spec/selector", json!({"matchLabels": {"tier": "x"}})),
            vec![volume("a", "1Gi"), volume("b", "1Gi").label("tier", "x")],
            Some("b"),
        ),
        ("meant for another", claim("c"), vec![meant_for(volume("v", "1Gi"), "d", "")], None),
        ("meant for a former one", claim("c"), vec![meant_for(volume("v", "1Gi"), "c", "old")], None),
        (
            "meant for it, whatever else fits",
            claim("c"),
            vec![
                volume("a", "1Gi"),
                meant_for(
                    volume("z", "8Gi").phase("Pending").set("/spec/storageClassName", json!("fast")),
                    "c",
                    "",
                ),
            ],
            Some("z"),
        ),
    ];
    for (name, claim, volumes, want) in rows {
        let said = of_claims([vec![claim], volumes].concat(), &[]);
        let got = said.iter().find_map(|line| line.strip_prefix("update persistentvolumes "));
        assert_eq!(got, want, "{name}: {said:?}");
    }
}

#[test]
fn a_binding_is_four_writes_and_goes_on_after_any_of_them() {
    let mut world = World::new([claim("c"), volume("v", "2Gi")]);
    let mut claims = Claims::new(&Tuning::default());
    let key = Key::new(NAMESPACE, "c");
    assert_eq!(play(&mut world, &mut claims, &key, &[]), binding("v"));

    // What each write leaves is taken up by the next look.
    let (plan, mut objects) = (claims.reconcile(&world.cache, &key, at(1)), Vec::new());
    let first = plan.acts().next().map(Act::body).unwrap_or_default();
    assert_eq!(first["spec"]["claimRef"]["uid"], "u-c");
    assert_eq!(first["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    let annotated = |draft: Draft| draft.annotation("pv.kubernetes.io/bound-by-controller", "yes");
    let half = annotated(meant_for(volume("v", "2Gi"), "c", "u-c"));
    objects.push((vec![claim("c"), half.clone()], 1));
    objects.push((vec![claim("c"), half.clone().phase("Bound")], 2));
    let named = annotated(bound(claim("c"), "v")).phase("Pending");
    objects.push((vec![named.clone(), half.clone().phase("Bound")], 3));
    let whole = named
        .phase("Bound")
        .set("/status/accessModes", json!(["ReadWriteOnce"]))
        .set("/status/capacity/storage", json!("2Gi"));
    objects.push((vec![whole, half.phase("Bound")], 4));
    for (objects, done) in objects {
        assert_eq!(of_claims(objects, &[]), binding("v")[done..]);
    }
}

#[test]
fn a_volume_that_its_maker_set_aside_does_not_say_that_we_bound_it() {
    let world = World::new([claim("c"), meant_for(volume("v", "1Gi"), "c", "")]);
    let plan = Claims::new(&Tuning::default()).reconcile(&world.cache, &Key::new(NAMESPACE, "c"), at(1));
    let body = plan.acts().next().map(Act::body).unwrap_or_default();
    assert_eq!(
        (&body["spec"]["claimRef"]["uid"], &body["metadata"]["annotations"]),
        (&json!("u-c"), &Value::Null)
    );
}

#[test]
fn a_claim_without_a_volume_says_what_it_waits_for() {
    let user = |name: &str| {
        pod(name).set("/spec/volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
    };
    let late = || class("slow", "example.com/x", "WaitForFirstConsumer");
    let selected = || classed("slow").annotation("volume.kubernetes.io/selected-node", "n");
    let external = "Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner \
                    'example.com/x' or manually by the system administrator. If volume creation is delayed, please \
                    verify that the provisioner is running and correctly registered.";
    let write = "update persistentvolumeclaims ns/c";
    let rows: Vec<(Vec<Draft>, Vec<&str>)> = vec![
        (
            vec![claim("c")],
            vec![
                "Normal FailedBinding: no persistent volumes available for this claim and no storage class is set",
            ],
        ),
        (
            vec![classed("slow"), late(), volume("v", "1Gi").set("/spec/storageClassName", json!("slow"))],
            vec!["Normal WaitForFirstConsumer: waiting for first consumer to be created before binding"],
        ),
        (
            vec![classed("slow"), late(), user("p"), user("done").phase("Succeeded"), user("there").on("n")],
            vec!["Normal WaitForPodScheduled: waiting for pod p to be scheduled"],
        ),
        (
            vec![classed("slow"), late(), user("p"), user("q")],
            vec!["Normal WaitForPodScheduled: waiting for pods p,q to be scheduled"],
        ),
        (vec![selected(), late()], vec![write, external]),
        (vec![classed("fast"), class("fast", "example.com/x", "Immediate")], vec![write, external]),
        (
            vec![classed("fast"), class("fast", "kubernetes.io/no-provisioner", "Immediate")],
            vec!["Warning ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"],
        ),
        (
            vec![classed("fast")],
            vec!["Warning ProvisioningFailed: storageclass.storage.k8s.io \"fast\" not found"],
        ),
    ];
    for (objects, want) in rows {
        assert_eq!(of_claims(objects.clone(), &[]), want, "{objects:?}");
    }
}

#[test]
fn an_external_provisioner_is_named_twice_and_a_migrated_one_by_its_driver() {
    for (said, driver) in [("example.com/x", "example.com/x"), ("kubernetes.io/aws-ebs", "ebs.csi.aws.com")] {
        let world = World::new([classed("fast"), class("fast", said, "Immediate")]);
        let plan = Claims::new(&Tuning::default()).reconcile(&world.cache, &Key::new(NAMESPACE, "c"), at(1));
        let annotations = plan.acts().next().map(|act| act.body()["metadata"]["annotations"].clone());
        let want = json!({
            "volume.beta.kubernetes.io/storage-provisioner": driver,
            "volume.kubernetes.io/storage-provisioner": driver,
        });
        assert_eq!(annotations, Some(want));
    }
}

#[test]
fn a_volume_that_a_provisioner_made_is_bound_whatever_the_mode() {
    let made = meant_for(volume("pvc-1", "1Gi"), "c", "u-c").set("/spec/storageClassName", json!("slow"));
    let late = class("slow", "example.com/x", "WaitForFirstConsumer");
    let said = of_claims(vec![classed("slow"), late, made.phase("Pending")], &[]);
    assert_eq!(said, binding("pvc-1")[1..]);
}

#[test]
fn a_claim_that_says_no_class_gets_the_newest_default_later() {
    let unsaid = || claim("c").set("/spec/storageClassName", Value::Null);
    let default = |name: &str, at| {
        class(name, "example.com/x", "WaitForFirstConsumer")
            .annotation("storageclass.kubernetes.io/is-default-class", "true")
            .created(at)
    };
    let world = World::new([
        unsaid(),
        default("b", 5),
        default("c", 9),
        default("a", 9),
        class("z", "x", "Immediate"),
    ]);
    let plan = Claims::new(&Tuning::default()).reconcile(&world.cache, &Key::new(NAMESPACE, "c"), at(1));
    assert_eq!(
        plan.acts().next().map(|act| act.body()["spec"]["storageClassName"].clone()),
        Some(json!("a"))
    );
    let fits = of_claims(vec![unsaid(), default("a", 1), volume("v", "1Gi")], &[]);
    assert_eq!(fits, binding("v"), "a volume without a class fits first");
    assert!(of_claims(vec![claim("c"), default("a", 1)], &[])[0].contains("no storage class is set"));
}

#[test]
fn a_claim_that_names_its_volume_gets_it_or_says_why_not() {
    let asks = || claim("c").set("/spec/volumeName", json!("v"));
    let rows: Vec<(Vec<Draft>, Vec<&str>)> = vec![
        (vec![asks()], vec![]),
        (
            vec![asks(), volume("v", "1Mi")],
            vec!["Warning VolumeMismatch: Cannot bind to requested volume \"v\": requested PV is too small"],
        ),
        (
            vec![asks(), volume("v", "1Gi").set("/spec/volumeMode", json!("Block"))],
            vec!["Warning VolumeMismatch: Cannot bind to requested volume \"v\": incompatible volumeMode"],
        ),
        (
            vec![asks(), meant_for(volume("v", "1Gi"), "d", "u-d")],
            vec!["Warning FailedBinding: volume \"v\" already bound to a different claim."],
        ),
    ];
    for (objects, want) in rows {
        assert_eq!(of_claims(objects.clone(), &[]), want, "{objects:?}");
    }
    assert_eq!(of_claims(vec![asks(), volume("v", "1Gi").phase("Pending")], &[]), binding("v"));
    let twice = bound(asks(), "v")
        .set("/metadata/annotations", json!({"pv.kubernetes.io/bound-by-controller": "yes"}));
    let said = of_claims(vec![twice, meant_for(volume("v", "1Gi"), "d", "u-d")], &[]);
    assert!(said[1].starts_with("failed: invalid binding of claim \"ns/c\" to volume \"v\""), "{said:?}");
}

#[test]
fn a_claim_loses_its_volume_only_if_the_api_server_says_so() {
    let get = "get /api/v1/persistentvolumes/v";
    let lost = |why: &str| {
        vec![get.to_owned(), "update persistentvolumeclaims/status ns/c".to_owned(), why.to_owned()]
    };
    let own = || meant_for(volume("v", "1Gi").phase("Bound"), "c", "u-c");
    let other = || meant_for(volume("v", "1Gi").phase("Bound"), "c", "u-new");
    assert_eq!(
        of_claims(vec![bound(claim("c"), "v")], &[]),
        lost("Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!")
    );
    assert_eq!(
        of_claims(vec![bound(claim("c"), "v"), other()], &[other()]),
        lost("Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly")
    );
    for cached in [vec![bound(claim("c"), "v")], vec![bound(claim("c"), "v"), other()]] {
        assert_eq!(of_claims(cached, &[own()]), [get, "failed: the cache of volumes is behind"]);
    }
    assert_eq!(of_claims(vec![bound(claim("c"), "v").phase("Lost")], &[]), [get], "told once");
    let nothing = of_claims(vec![bound(claim("c"), "")], &[]);
    assert!(nothing[1].starts_with("Warning ClaimLost: Bound claim has lost reference"), "{nothing:?}");
}

#[test]
fn who_waits_is_woken_by_a_free_volume_and_by_classes() {
    let world = World::new([claim("c"), claim("done")]);
    let mut claims = Claims::new(&Tuning::default());
    let plan = claims.reconcile(&world.cache, &Key::new(NAMESPACE, "c"), at(1));
    assert_eq!(plan.wake, Some(Duration::from_secs(15)));
    assert_eq!(claims.reconcile(&world.cache, &Key::all(), at(1)).others, [Key::new(NAMESPACE, "c")]);
    let watches = BINDER_OF_CLAIMS.watches;
    let free = volume("v", "1Gi");
    assert_eq!(world.wakes(watches, None, Some(&free)), [""]);
    assert_eq!(world.wakes(watches, Some(&free), Some(&free.clone().label("a", "b"))), [""; 0]);
    let taken = meant_for(free.clone(), "c", "u-c").phase("Bound");
    assert_eq!(world.wakes(watches, Some(&free), Some(&taken)), ["ns/c"]);
    assert_eq!(world.wakes(watches, Some(&taken), None), ["ns/c"]);
    let claim = bound(claim("c"), "v");
    assert_eq!(world.wakes(BINDER_OF_VOLUMES.watches, Some(&claim), None), ["v"]);
}

#[test]
fn a_volume_says_whether_it_is_free_bound_or_released() {
    let phase = "update persistentvolumes/status v";
    let get = "get /api/v1/namespaces/ns/persistentvolumeclaims/c";
    let fresh = || volume("v", "1Gi").phase("Pending");
    let mine = || meant_for(fresh(), "c", "u-c");
    let rows: Vec<Asked<'_>> = vec![
        ("free", vec![fresh()], vec![], vec![phase]),
        ("set aside", vec![meant_for(fresh(), "c", "")], vec![], vec![phase]),
        ("bound", vec![mine(), bound(claim("c"), "v")], vec![], vec![phase]),
        ("half bound", vec![mine(), claim("c")], vec![], vec![]),
        ("claimed by one we do not know yet", vec![mine()], vec![claim("c")], vec![get]),
        ("released", vec![mine()], vec![], vec![get, phase]),
        (
            "claimed by a former one",
            vec![mine(), claim("c").uid("new")],
            vec![claim("c").uid("new")],
            vec![get, phase],
        ),
        ("kept", vec![mine().phase("Released")], vec![], vec![]),
    ];
    for (name, objects, live, want) in rows {
        assert_eq!(of_volumes(objects, &live), want, "{name}");
    }
    let block = of_volumes(vec![mine(), claim("c").set("/spec/volumeMode", json!("Block"))], &[]);
    assert_eq!(
        block,
        [
            "Warning VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to \
             incompatible volumeMode.",
            "Warning VolumeMismatch: Cannot bind PersistentVolume \"v\" to requested PersistentVolumeClaim due to \
             incompatible volumeMode.",
        ]
    );
}

#[test]
fn of_two_volumes_for_one_claim_one_goes_back() {
    let taken = bound(claim("c"), "other");
    let ours = meant_for(volume("v", "1Gi").phase("Bound"), "c", "u-c")
        .annotation("pv.kubernetes.io/bound-by-controller", "yes");
    let world = World::new([ours.clone(), taken.clone()]);
    let plan = Volumes::new(&Tuning::default()).reconcile(&world.cache, &Key::new("", "v"), at(1));
    assert!(plan.acts().next().is_some_and(|act| act.body()["spec"]["claimRef"].is_null()));
    assert_eq!(
        of_volumes(vec![ours, taken.clone()], &[]),
        ["update persistentvolumes v", "update persistentvolumes/status v"]
    );
    let reserved = meant_for(volume("v", "1Gi").phase("Bound"), "c", "u-c");
    let world = World::new([reserved, taken]);
    let plan = Volumes::new(&Tuning::default()).reconcile(&world.cache, &Key::new("", "v"), at(1));
    let left = plan.acts().next().map(|act| act.body()["spec"]["claimRef"].clone());
    assert_eq!(left, Some(json!({"namespace": NAMESPACE, "name": "c"})));
}

#[test]
fn who_made_a_volume_deletes_it_and_what_nobody_made_has_failed() {
    let released = |policy: &str| {
        meant_for(volume("v", "1Gi").phase("Released"), "c", "u-c")
            .set("/spec/persistentVolumeReclaimPolicy", json!(policy))
    };
    let failed = |why: &str| vec!["update persistentvolumes/status v".to_owned(), why.to_owned()];
    assert!(
        of_volumes(vec![released("Delete").annotation(terms::PROVISIONED_BY, "example.com/x")], &[])
            .is_empty()
    );
    assert!(of_volumes(vec![released("Delete").set("/spec/csi/driver", json!("x"))], &[]).is_empty());
    assert_eq!(
        of_volumes(vec![released("Delete")], &[]),
        failed(
            "Warning VolumeFailedDelete: host_path deleter only supports /tmp/.+ but received provided /data"
        )
    );
    assert_eq!(
        of_volumes(vec![released("Delete").set("/spec/hostPath", Value::Null)], &[]),
        failed(
            "Warning VolumeFailedDelete: error getting deleter volume plugin for volume \"v\": no deletable volume \
             plugin matched"
        )
    );
    assert_eq!(
        of_volumes(vec![released("Burn")], &[]),
        failed("Warning VolumeUnknownReclaimPolicy: Volume has unrecognized PersistentVolumeReclaimPolicy")
    );
    assert!(of_volumes(vec![released("Burn").phase("Failed")], &[]).is_empty(), "told once");
}

#[test]
fn a_volume_is_scrubbed_by_a_pod_and_offered_again() {
    let released = meant_for(volume("v", "9Gi").phase("Released"), "c", "u-c")
        .set("/spec/persistentVolumeReclaimPolicy", json!("Recycle"));
    let mut world = World::new([released.clone()]);
    let mut volumes = Volumes::new(&Tuning::default());
    let key = Key::new("", "v");
    let plan = volumes.reconcile(&world.cache, &key, at(1));
    let made = plan.acts().next().map(Act::body).unwrap_or_default();
    assert_eq!(made["metadata"]["name"], "recycler-for-v");
    assert_eq!(made["spec"]["activeDeadlineSeconds"], 270);
    assert_eq!(made["spec"]["volumes"], json!([{"name": "vol", "hostPath": {"path": "/data"}}]));
    volumes.recycling.forget("v");
    assert_eq!(play(&mut world, &mut volumes, &key, &[]), ["create pods in default"]);
    let scrubber = |phase: &str| {
        pod("recycler-for-v").set("/metadata/namespace", json!("default")).uid("u-made").phase(phase)
    };
    world.put(scrubber("Running"));
    assert!(play(&mut world, &mut volumes, &key, &[]).is_empty());
    world.put(scrubber("Succeeded"));
    assert_eq!(
        play(&mut world, &mut volumes, &key, &[]),
        [
            "delete pods default/recycler-for-v",
            "update persistentvolumes v",
            "Normal VolumeRecycled: Volume recycled",
            "update persistentvolumes/status v",
        ]
    );
    world.put(released.clone());
    volumes.recycling.forget("v");
    assert_eq!(
        play(&mut world, &mut volumes, &key, &[]),
        [
            "delete pods default/recycler-for-v",
            "update persistentvolumes/status v",
            "Warning VolumeFailedRecycle: Recycle failed: old recycler pod found, will retry later",
        ],
        "a Pod that was not made here proves nothing"
    );
    let user =
        pod("p").set("/spec/volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]));
    assert_eq!(
        of_volumes(vec![released.clone(), user.running()], &[]),
        ["Normal VolumeFailedRecycle: Volume is used by pods: ns/p"]
    );
    let local = released.set("/spec/hostPath", Value::Null).set("/spec/local/path", json!("/x"));
    assert!(of_volumes(vec![local], &[])[1].contains("No recycler plugin found for the volume!"));
}

#[test]
fn what_a_csi_driver_has_taken_over_is_its_own() {
    let old = meant_for(volume("v", "1Gi").phase("Released"), "c", "u-c")
        .annotation(terms::PROVISIONED_BY, "kubernetes.io/aws-ebs")
        .set("/spec/persistentVolumeReclaimPolicy", json!("Delete"))
        .set("/metadata/finalizers", json!(["kubernetes.io/pv-controller", "other"]));
    assert_eq!(of_volumes(vec![old.clone()], &[]), ["update persistentvolumes v"; 2]);
    let world = World::new([old.annotation(terms::MIGRATED_TO, "ebs.csi.aws.com")]);
    let plan = Volumes::new(&Tuning::default()).reconcile(&world.cache, &Key::new("", "v"), at(1));
    let left = plan.acts().next().map(|act| act.body()["metadata"]["finalizers"].clone());
    assert_eq!(left, Some(json!(["other"])));
}
