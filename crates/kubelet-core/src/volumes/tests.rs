#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::atomic::{Present, Steps, plan, validate};
use super::*;

/// All of them, or the first that cannot be had.
fn desired(pod: &Pod, node: &Allocatable, references: &ReferencedObjects) -> Result<Vec<Desired>, Refused> {
    super::desired(pod, node, references).into_iter().collect()
}

fn pod(volumes: Value, extra: Value) -> Pod {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|v| json!({"name": v["name"], "mountPath": format!("/{}", v["name"])}))
        .collect();
    let mut spec = json!({"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}]});
    for (key, value) in extra.as_object().unwrap() {
        match key.as_str() {
            "resources" => spec["containers"][0]["resources"] = value.clone(),
            key => spec[key] = value.clone(),
        }
    }
    let meta = json!({"name": "web", "namespace": "shop", "uid": "u", "labels": {"app": "web"}});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn node() -> Allocatable {
    Allocatable { milli_cpu: 4000, memory: 1 << 30, ..Default::default() }
}

fn source(volume: Value, extra: Value) -> Result<Source, String> {
    let mut volume = volume;
    volume["name"] = json!("v");
    desired(&pod(json!([volume]), extra), &node(), &ReferencedObjects::default())
        .map(|mut d| d.remove(0).source)
        .map_err(|e| e.to_string())
}

#[test]
fn media_of_empty_dir() {
    let limits = |m: &str| json!({"resources": {"limits": {"memory": m}}});
    let memory = |size| Ok(Source::EmptyDir(Medium::Memory { size: Some(size) }));
    let table = [
        (json!({}), json!({}), Ok(Source::EmptyDir(Medium::Disk))),
        (json!({"sizeLimit": "1Gi"}), json!({}), Ok(Source::EmptyDir(Medium::Disk))),
        (json!({"medium": "Memory"}), json!({}), memory(1 << 30)),
        (json!({"medium": "Memory", "sizeLimit": "64Mi"}), json!({}), memory(64 << 20)),
        (json!({"medium": "Memory", "sizeLimit": "0"}), json!({}), memory(1 << 30)),
        (json!({"medium": "Memory", "sizeLimit": "64Mi"}), limits("32Mi"), memory(32 << 20)),
        (json!({"medium": "Memory"}), limits("32Mi"), memory(32 << 20)),
        (json!({"medium": "Memory"}), limits("32Gi"), memory(1 << 30)),
        (
            json!({"medium": "Memory"}),
            json!({"resources": {"limits": {"memory": "32Mi"}}, "initContainers": [{"name": "i"}]}),
            memory(1 << 30),
        ),
        (
            json!({"medium": "Memory"}),
            json!({"resources": {"limits": {"memory": "32Mi"}}, "overhead": {"memory": "8Mi"}}),
            memory(40 << 20),
        ),
        (
            json!({"medium": "Floppy"}),
            json!({}),
            Err(r#"volume "v": unknown storage medium "Floppy""#.into()),
        ),
    ];
    for (empty, extra, want) in table {
        assert_eq!(source(json!({"emptyDir": empty}), extra.clone()), want, "{empty} {extra}");
    }
}

#[test]
fn huge_pages_take_their_size_from_the_requests() {
    let huge = |medium: &str, requests: Value| {
        let volume = json!({"emptyDir": {"medium": medium, "sizeLimit": "4Mi"}});
        match source(volume, json!({"resources": {"requests": requests}})) {
            Ok(Source::EmptyDir(Medium::HugePages { page_size, size: Some(4_194_304) })) => Ok(page_size),
            Ok(other) => panic!("{other:?}"),
            Err(e) => Err(e),
        }
    };
    let two = json!({"hugepages-2Mi": "4Mi"});
    let both = json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"});
    assert_eq!(huge("HugePages", two.clone()), Ok(2 << 20));
    assert_eq!(huge("HugePages-2Mi", both.clone()), Ok(2 << 20));
    assert_eq!(huge("HugePages-1Gi", both.clone()), Ok(1 << 30));
    for (medium, requests, want) in [
        ("HugePages", both, "multiple huge page sizes"),
        ("HugePages", json!({}), "requests huge pages"),
        ("HugePages-1Gi", two.clone(), "huge pages of that size"),
        ("HugePages-x", two.clone(), "unknown storage medium"),
        ("HugePagesX", two, "unknown storage medium"),
    ] {
        let error = huge(medium, requests).unwrap_err();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn kinds_without_an_api_server() {
    for (volume, kind) in [
        (json!({"configMap": {"name": "x"}}), "configMap"),
        (json!({"secret": {"secretName": "x"}}), "secret"),
        (json!({"persistentVolumeClaim": {"claimName": "x"}}), "persistentVolumeClaim"),
        (json!({"csi": {"driver": "x"}}), "csi"),
        (json!({"gitRepo": {"repository": "x"}}), "gitRepo"),
        (json!({"projected": {"sources": [{"secret": {"name": "x"}}]}}), "secret"),
        (json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}), "serviceAccountToken"),
    ] {
        let error = source(volume, json!({})).unwrap_err();
        assert!(error.starts_with("volume \"v\": ") && error.contains(kind), "{error}");
        assert!(error.contains("API server"), "{error}");
    }
}

#[test]
fn a_volume_nobody_mounts_is_left_alone() {
    let mut pod = pod(json!([{"name": "v", "secret": {"secretName": "x"}}]), json!({}));
    assert!(desired(&pod, &node(), &ReferencedObjects::default()).is_err());
    pod.spec.as_mut().unwrap().containers[0].volume_mounts = None;
    assert_eq!(desired(&pod, &node(), &ReferencedObjects::default()), Ok(Vec::new()));
}

#[test]
fn host_paths() {
    let host = |path: &str, kind: &str| source(json!({"hostPath": {"path": path, "type": kind}}), json!({}));
    let kind = HostPathKind::Socket;
    assert_eq!(host("/run/x", "Socket"), Ok(Source::HostPath { path: "/run/x".into(), kind }));
    assert!(host("/run/../etc", "").unwrap_err().contains("must not contain '..'"));
    assert!(host("/run", "Floppy").unwrap_err().ends_with("Floppy is an invalid volume type"));
}

#[test]
fn names_that_are_no_file_names() {
    for name in ["..", ".", "", "a/b", "../x"] {
        assert!(
            desired(
                &pod(json!([{"name": name, "emptyDir": {}}]), json!({})),
                &node(),
                &ReferencedObjects::default()
            )
            .is_err(),
            "{name}"
        );
    }
}

#[test]
fn files_of_the_downward_api() {
    let items = json!([
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "./deep//labels", "mode": 256, "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "mem", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}},
    ]);
    let file = |data: &str, mode| File { data: data.into(), mode, uid: 0 };
    let want: Payload = [
        ("name".to_owned(), file("web", 0o600)),
        ("deep/labels".to_owned(), file("app=\"web\"", 0o400)),
        ("mem".to_owned(), file("1024", 0o600)),
    ]
    .into();
    for (volume, kind) in [
        (json!({"downwardAPI": {"defaultMode": 384, "items": items}}), FilesKind::DownwardApi),
        (
            json!({"projected": {"defaultMode": 384, "sources": [{"downwardAPI": {"items": items}}]}}),
            FilesKind::Projected,
        ),
    ] {
        let size = Some(1 << 30);
        assert_eq!(
            source(volume, json!({})),
            Ok(Source::Files { kind, payload: want.clone(), size, nested: vec![] })
        );
    }
    for (path, why) in [
        ("..x", "start with"),
        ("a/../../b", "contain"),
        ("/etc/passwd", "relative"),
        ("", "empty"),
        (".", "empty"),
    ] {
        let items = json!([{"path": path, "fieldRef": {"fieldPath": "metadata.name"}}]);
        let error = source(json!({"downwardAPI": {"items": items}}), json!({})).unwrap_err();
        assert!(error.contains(why), "{path}: {error}");
    }
}

#[test]
fn claims_are_what_they_are_bound_to() {
    let claim = |pv: Result<Value, &str>| {
        let pv = pv.map(|spec| json!({"metadata": {"name": "pv"}, "spec": spec}));
        let sizes = expand::Claimed { capacity: Some(1), ..Default::default() };
        let volume = |v| serde_json::from_value(v).unwrap();
        let bound = |v| crate::references::Bound { volume: volume(v), sizes, ..Default::default() };
        let pv = pv.map(|v| std::sync::Arc::new(bound(v))).map_err(str::to_owned);
        let references = ReferencedObjects {
            has_server: true,
            claims: [("c".to_owned(), pv)].into(),
            ..ReferencedObjects::default()
        };
        let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        let made = desired(&pod(volume, json!({})), &node(), &references);
        made.map(|mut d| d.remove(0).source).map_err(|e| e.message)
    };
    assert_eq!(
        claim(Ok(json!({"local": {"path": "/mnt/a"}}))),
        Ok(Source::Local {
            path: "/mnt/a".into(),
            spec_name: "pv".into(),
            fs_type: "ext4".into(),
            options: vec![],
            exclusive: false,
        })
    );
    let share =
        json!({"nfs": {"server": "fd00::1", "path": "/x", "readOnly": true}, "mountOptions": ["hard"]});
    let options = vec!["ro".to_owned(), "hard".to_owned()];
    assert_eq!(claim(Ok(share)), Ok(Source::Nfs { share: "[fd00::1]:/x".into(), options }));
    let host = json!({"hostPath": {"path": "/x"}, "mountOptions": ["ro"]});
    assert_eq!(claim(Ok(host)), Err("mount options are not supported for this volume type".into()));
    assert_eq!(claim(Err("PVC is not bound")), Err("error processing PVC shop/c: PVC is not bound".into()));
    let csi = json!({"capacity": {"storage": "1Gi"}, "csi": {"driver": "d", "volumeHandle": "h"}});
    let Ok(Source::Csi(driven)) = claim(Ok(csi)) else { panic!("no driver") };
    assert_eq!(driven.capacity, Some(1 << 30));
    let claimed = driven.claim.map(|c| (c.namespace, c.name, c.sizes.capacity));
    assert_eq!(claimed, Some(("shop".into(), "c".into(), Some(1))));
    assert!(
        claim(Ok(json!({"iscsi": {"iqn": "i", "lun": 0, "targetPortal": "p"}})))
            .unwrap_err()
            .contains("of kind iscsi")
    );
    let block = json!({"volumeMode": "Block", "hostPath": {"path": "/dev/x"}});
    assert!(claim(Ok(block)).unwrap_err().contains("volumeMode Block"));
    assert!(claim(Ok(json!({"nfs": {"server": "-o", "path": "/x"}}))).unwrap_err().contains("invalid NFS"));
}

#[test]
fn mount_options_of_an_annotation_count_first() {
    let table = [
        (json!({}), json!(["hard"]), "hard"),
        (json!({"volume.beta.kubernetes.io/mount-options": "soft,,ro"}), json!(["hard"]), "soft,ro"),
        (json!({"volume.beta.kubernetes.io/mount-options": ""}), json!(["hard"]), ""),
    ];
    for (annotations, options, want) in table {
        let volume = json!({
            "metadata": {"name": "pv", "annotations": annotations},
            "spec": {"nfs": {"server": "s", "path": "/x"}, "mountOptions": options},
        });
        let bound = crate::references::Bound {
            volume: serde_json::from_value(volume).unwrap(),
            ..Default::default()
        };
        let claims = [("c".to_owned(), Ok(std::sync::Arc::new(bound)))].into();
        let references = ReferencedObjects { has_server: true, claims, ..ReferencedObjects::default() };
        let pod = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]), json!({}));
        match &desired(&pod, &node(), &references).unwrap()[0].source {
            Source::Nfs { options, .. } => assert_eq!(options.join(","), want),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_group_of_a_volume_is_a_number() {
    for (annotation, want) in [("4321", Some(4321)), ("staff", None), ("", None)] {
        let meta = json!({"name": "pv", "annotations": {"pv.beta.kubernetes.io/gid": annotation}});
        let volume = serde_json::from_value(json!({"metadata": meta})).unwrap();
        let bound = crate::references::Bound { volume, ..Default::default() };
        assert_eq!(super::claim::gid(&bound), want, "{annotation}");
    }
}

#[test]
fn a_container_that_joins_is_a_user_too() {
    let owner = |joined: Value| {
        let extra = json!({"securityContext": {"runAsUser": 7}, "ephemeralContainers": [joined]});
        let file = super::payload::private_file(&pod(json!([]), extra), Vec::new(), 0o644);
        (file.uid, file.mode)
    };
    assert_eq!(owner(json!({"name": "debug"})), (7, 0o600));
    let other = json!({"name": "debug", "securityContext": {"runAsUser": 8}});
    assert_eq!(owner(other), (0, 0o644));
}

#[test]
fn files_from_objects() {
    let found = |json| crate::references::Referenced::Found(std::sync::Arc::new(json));
    let mut references = ReferencedObjects { has_server: true, ..ReferencedObjects::default() };
    let map = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"raw": "AAE="}});
    references.config_maps.insert("m".into(), found(serde_json::from_value(map).unwrap()));
    references.secrets.insert("none".into(), crate::references::Referenced::Missing);
    let token = crate::references::TokenWant { audience: String::new(), seconds: 3600 };
    references.tokens.insert(token, Ok("t0ken".into()));
    let files = |volume: Value, extra: Value| {
        let mut volume = volume;
        volume["name"] = json!("v");
        match desired(&pod(json!([volume]), extra), &node(), &references).map(|mut d| d.remove(0).source) {
            Ok(Source::Files { payload, .. }) => Ok(payload
                .iter()
                .map(|(k, f)| format!("{k}={} {:o} {}", String::from_utf8_lossy(&f.data), f.mode, f.uid))
                .collect::<Vec<_>>()),
            Ok(other) => panic!("{other:?}"),
            Err(e) => Err(e.message),
        }
    };
    let all = files(json!({"configMap": {"name": "m", "defaultMode": 256}}), json!({})).unwrap();
    assert_eq!(all, ["a=1 400 0", "b=2 400 0", "raw=\0\u{1} 400 0"]);
    let items = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": "x/y", "mode": 511}]}});
    assert_eq!(files(items, json!({})).unwrap(), ["x/y=1 777 0"]);
    let gone = json!({"configMap": {"name": "m", "items": [{"key": "z", "path": "z"}]}});
    assert_eq!(files(gone, json!({})).unwrap_err(), "configmap references non-existent config key: z");
    let absent = json!({"secret": {"secretName": "none"}});
    assert_eq!(files(absent, json!({})).unwrap_err(), "secret \"none\" not found");
    let optional = json!({"secret": {"secretName": "none", "optional": true}});
    assert_eq!(files(optional, json!({})).unwrap(), Vec::<String>::new());
    // A token is private where one reader can be named.
    let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
    assert_eq!(files(token.clone(), json!({})).unwrap(), ["t=t0ken 644 0"]);
    let user = json!({"securityContext": {"runAsUser": 7}});
    assert_eq!(files(token.clone(), user).unwrap(), ["t=t0ken 600 7"]);
    let group = json!({"securityContext": {"fsGroup": 7}});
    assert_eq!(files(token, group).unwrap(), ["t=t0ken 600 0"]);
    let both = json!({"projected": {"sources": [
        {"secret": {"name": "none"}},
        {"configMap": {"name": "m", "items": [{"key": "z", "path": "z"}]}},
    ]}});
    let wrong = "[secret \"none\" not found, configmap references non-existent config key: z]";
    assert_eq!(files(both, json!({})).unwrap_err(), wrong);
}

#[test]
fn files_know_of_the_volumes_inside_them() {
    let mut pod = pod(json!([{"name": "v", "downwardAPI": {}}, {"name": "w", "emptyDir": {}}]), json!({}));
    let mounts = pod.spec.as_mut().unwrap().containers[0].volume_mounts.as_mut().unwrap();
    "/etc/app".clone_into(&mut mounts[0].mount_path);
    "/etc/app/certs".clone_into(&mut mounts[1].mount_path);
    let inside = |desired: &Desired| match &desired.source {
        Source::Files { nested, .. } => nested.clone(),
        other => panic!("{other:?}"),
    };
    let all = desired(&pod, &node(), &ReferencedObjects::default()).unwrap();
    assert_eq!(inside(&all[0]), ["certs"]);
    assert_eq!(inside(&written(&pod, "v").unwrap()), ["certs"]);
}

#[test]
fn the_group_goes_to_what_belongs_to_the_pod() {
    let volumes = json!([
        {"name": "e", "emptyDir": {}},
        {"name": "h", "hostPath": {"path": "/x"}},
        {"name": "d", "downwardAPI": {"items": []}},
        {"name": "i", "image": {"reference": "r"}},
    ]);
    let extra = json!({"securityContext": {"fsGroup": 77, "fsGroupChangePolicy": "OnRootMismatch"}});
    let got: Vec<_> = desired(&pod(volumes, extra), &node(), &ReferencedObjects::default())
        .unwrap()
        .into_iter()
        .map(|d| (d.name, d.fs_group.map(|g| g.gid), d.read_only))
        .collect();
    let want = [("e", Some(77), false), ("h", None, false), ("d", Some(77), true), ("i", None, true)];
    assert_eq!(got, want.map(|(n, g, r)| (n.to_owned(), g, r)));
}

/// Carries out a plan the way the writer does, on data.
fn apply(present: &Present, wanted: &Payload, steps: &Steps) -> Present {
    let mut after = present.clone();
    if steps.write {
        let fresh = format!("..{}", present.data_dir.as_deref().unwrap_or(".."));
        if let Some(old) = after.data_dir.replace(fresh) {
            after.strange.insert(old);
        }
        after.payload = Some(wanted.clone());
    }
    for name in &steps.link {
        after.strange.remove(name);
        after.dirs.remove(name);
        after.links.insert(name.clone());
    }
    for name in &steps.remove {
        after.links.remove(name);
        after.strange.remove(name);
        after.dirs.remove(name);
    }
    after
}

fn payloads() -> impl Strategy<Value = Payload> {
    let file = (proptest::collection::vec(any::<u8>(), 0..3), prop_oneof![Just(0o644), Just(0o600)]);
    let path = prop_oneof!["[ab]", "[cd]/[ab]", "[e]/[f]/[ab]"];
    proptest::collection::btree_map(path, file.prop_map(|(data, mode)| File { data, mode, uid: 0 }), 0..5)
}

fn presents() -> impl Strategy<Value = Present> {
    let names = || proptest::collection::btree_set("[a-g]", 0..4);
    (any::<bool>(), proptest::option::of(payloads()), names(), names(), names()).prop_map(
        |(has, payload, links, odd, dirs)| Present {
            data_dir: has.then(|| "..1".to_owned()),
            payload: payload.filter(|_| has),
            strange: (&(&odd - &links) - &dirs).into_iter().chain(["..0".to_owned()]).collect(),
            dirs: &dirs - &links,
            links,
        },
    )
}

proptest! {
    #[test]
    fn one_pass_is_enough_from_any_state(present in presents(), wanted in payloads()) {
        prop_assert_eq!(validate(&wanted), Ok(()));
        let after = apply(&present, &wanted, &plan(&present, &wanted));
        prop_assert_eq!(after.payload.as_ref(), Some(&wanted));
        let visible: BTreeSet<String> = wanted.keys().map(|p| atomic::top(p).to_owned()).collect();
        prop_assert_eq!(&after.links, &(&visible - &present.dirs));
        prop_assert_eq!(&after.dirs, &present.dirs);
        prop_assert!(after.strange.is_empty());
        prop_assert_eq!(plan(&after, &wanted), Steps::default());
    }
}
