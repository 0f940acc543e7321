//! Addresses that the API server lets pass and that a kernel may not take for what they are said to be.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy_core::objects::Protocol;
use serde_json::json;

use super::matrix::Kernel;
use super::{Answer, Lab, service, slices};

/// Groups and broadcasts, as an external address and as endpoints.
fn objects(lab: &Lab) -> (Vec<Service>, Vec<EndpointSlice>) {
    let external = json!({"spec": {"externalIPs": ["239.1.1.1", "255.255.255.255", "ff0e::1"]}});
    let services = vec![service("alien", 11, external), service("misled", 12, json!({}))];
    let mut all = slices("alien", &[&lab.pods[0]]);
    for mut slice in slices("misled", &[&lab.pods[0], &lab.pods[1]]) {
        let strange = if slice.address_type == "IPv4" {
            ["239.1.1.1", "255.255.255.255"]
        } else {
            ["ff0e::1", "ff02::1"]
        };
        for (endpoint, address) in slice.endpoints.iter_mut().flatten().zip(strange) {
            endpoint.addresses = vec![address.to_owned()];
        }
        all.push(slice);
    }
    (services, all)
}

fn is_served(lab: &Lab, number: u8, when: &str) {
    for to in [format!("10.96.0.{number}:80"), format!("[fd96::{number}]:80")] {
        let answer = lab.pods[2].call(to.parse().unwrap(), Protocol::Tcp);
        assert!(matches!(answer, Answer::From { .. }), "{to} {when}: {answer:?}");
    }
}

/// Whenever they come, all other Services are served, and what is new arrives.
pub(crate) fn harms_nobody(lab: &Lab, kernels: &mut [Kernel; 2]) {
    let mut cluster = super::cluster();
    let (strange, of_strange) = objects(lab);
    let usual = |number: u8| {
        let name = format!("s{number}");
        (service(&name, number, json!({})), slices(&name, &[&lab.pods[0], &lab.pods[1]]))
    };
    let (first, of_first) = usual(10);
    cluster.replace_services(&[strange.as_slice(), std::slice::from_ref(&first)].concat());
    cluster.replace_slices(&[of_strange.as_slice(), &of_first].concat());
    let mut tell = |cluster: &mut _| kernels.iter_mut().for_each(|kernel| kernel.update(lab, cluster));
    tell(&mut cluster);
    is_served(lab, 10, "at first");
    is_served(lab, 11, "at its own address");
    let (second, of_second) = usual(20);
    cluster.put_service(&second);
    for slice in &of_second {
        cluster.put_slice(slice);
    }
    tell(&mut cluster);
    is_served(lab, 20, "after a change");
    // They go, and come again beside what is there.
    cluster.replace_services(&[first.clone(), second.clone()]);
    cluster.replace_slices(&[of_first.as_slice(), &of_second].concat());
    tell(&mut cluster);
    let (third, of_third) = usual(30);
    cluster.replace_services(&[strange.as_slice(), &[first, second, third]].concat());
    cluster.replace_slices(&[of_strange.as_slice(), &of_first, &of_second, &of_third].concat());
    tell(&mut cluster);
    [10, 11, 20, 30].into_iter().for_each(|number| is_served(lab, number, "in the end"));
    for kernel in kernels {
        assert_eq!(kernel.verify(lab), Vec::<String>::new());
    }
}
