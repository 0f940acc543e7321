//! Services and slices by number.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;

pub(crate) fn service(number: u32) -> Service {
    let ip = format!("10.{}.{}.{}", 96 + number / 65_536, number / 256 % 256, number % 256);
    let made = json!({
        "metadata": {"namespace": "bench", "name": format!("service-{number}"), "resourceVersion": "1",
                     "uid": format!("uid-{number}")},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    });
    serde_json::from_value(made).unwrap()
}

pub(crate) fn slice(number: u32, endpoints: u32, shift: u32) -> EndpointSlice {
    let ip = |i: u32| {
        let pod = number * 2 + i + shift;
        format!("10.{}.{}.{}", 128 + pod / 65_536, pod / 256 % 256, pod % 256)
    };
    slice_to(number, &(0..endpoints).map(ip).collect::<Vec<_>>())
}

pub(crate) fn slice_to(number: u32, ips: &[String]) -> EndpointSlice {
    let endpoints: Vec<_> =
        ips.iter().map(|ip| json!({"addresses": [ip], "nodeName": "elsewhere"})).collect();
    let made = json!({
        "metadata": {"namespace": "bench", "name": format!("service-{number}-x"), "resourceVersion": "1",
                     "labels": {"kubernetes.io/service-name": format!("service-{number}")}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    });
    serde_json::from_value(made).unwrap()
}
