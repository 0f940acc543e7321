//! What a container is given of the machine by names of others: devices of the Container Device Interface, and profiles that
//! we cannot give.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;

use cri::v1;
use support::{DEADLINE, Place, container, exited};

#[tokio::test]
async fn a_device_of_a_vendor_comes_with_what_it_needs() {
    let mut place = Place::new();
    let client = place.start();
    let (specs, driver) = (place.path("cdi"), place.path("driver"));
    fs::create_dir(&specs).unwrap();
    fs::create_dir(&driver).unwrap();
    fs::write(driver.join("lib"), "of the driver").unwrap();
    let spec = format!(
        "cdiVersion: 0.6.0\nkind: vendor.example/gpu\ncontainerEdits:\n  env: [DRIVER=here]\n  mounts:\n  - {{hostPath: {}, containerPath: /driver, options: [ro, noexec]}}\n\
         devices:\n- name: zero\n  containerEdits:\n    env: [GPU=zero]\n    additionalGids: [44]\n    deviceNodes:\n    - {{path: /dev/gpu/zero, hostPath: /dev/zero, permissions: rw, fileMode: 416}}\n",
        driver.display()
    );
    fs::write(specs.join("vendor.yaml"), spec).unwrap();
    let config = place.sandbox("gpu");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let script = "echo $DRIVER $GPU; cat /driver/lib; echo; (echo x > /driver/new) 2>/dev/null || echo read-only; id -G; \
        stat -c '%t:%T %a %u' /dev/gpu/zero; head -c 3 /dev/gpu/zero | wc -c; exec sleep 1000";
    let mut one = container("one", script);
    one.cdi_devices = vec![v1::CdiDevice { name: "vendor.example/gpu=zero".into() }];
    one.linux.as_mut().unwrap().security_context.as_mut().unwrap().run_as_username = "web".into();
    let id = client.create_container(&sandbox, one, config.clone()).await.unwrap();
    client.start_container(&id).await.unwrap();
    // A command has it, too, whatever becomes of the spec.
    fs::remove_file(specs.join("vendor.yaml")).unwrap();
    let words = ["/bin/sh", "-c", "echo $GPU; id -G"].map(str::to_owned).to_vec();
    let done = client.exec_sync(&id, words, DEADLINE).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "zero\n1001 44 50000\n");
    client.stop_container(&id, 0).await.unwrap();
    exited(&client, &id).await;
    let want = "here zero\nof the driver\nread-only\n1001 44 50000\n1:5 640 1000\n3";
    assert_eq!(place.log("gpu", "one"), want);

    let mut two = container("two", "true");
    two.cdi_devices = vec![v1::CdiDevice { name: "vendor.example/gpu=zero".into() }];
    let error = client.create_container(&sandbox, two, config).await.unwrap_err();
    assert!(error.message.contains("\"vendor.example/gpu=zero\": no spec has it"), "{error}");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

#[tokio::test]
async fn a_profile_that_would_not_confine_is_refused_by_name() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("armor");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    use v1::security_profile::ProfileType;
    let profile = |kind: ProfileType, name: &str| v1::SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: name.into(),
    };
    let rows = [
        (profile(ProfileType::Localhost, "mine"), Some("AppArmor profile \"mine\"")),
        (profile(ProfileType::RuntimeDefault, ""), Some("AppArmor profile \"runtime/default\"")),
        (profile(ProfileType::Unconfined, ""), None),
    ];
    for (at, (profile, want)) in rows.into_iter().enumerate() {
        let mut one = container(&format!("c{at}"), "true");
        one.linux.as_mut().unwrap().security_context.as_mut().unwrap().apparmor = Some(profile);
        let created = client.create_container(&sandbox, one, config.clone()).await;
        match want {
            Some(want) => assert!(created.unwrap_err().message.contains(want)),
            None => drop(created.unwrap()),
        }
    }
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}
