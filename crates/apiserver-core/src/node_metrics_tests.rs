#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

/// What a kubelet with one Pod says: when, in seconds, and what was used until then.
fn text(at: i64, cpu: f64, started: i64) -> String {
    let millis = at * 1000;
    format!(
        "# HELP container_cpu_usage_seconds_total x\n# TYPE container_cpu_usage_seconds_total counter\n\
         container_cpu_usage_seconds_total{{container=\"c\",namespace=\"ns\",pod=\"p\"}} {cpu} {millis}\n\
         container_memory_working_set_bytes{{container=\"c\",namespace=\"ns\",pod=\"p\"}} 1.048576e+06 {millis}\n\
         container_start_time_seconds{{container=\"c\",namespace=\"ns\",pod=\"p\"}} {started}\n\
         node_cpu_usage_seconds_total {cpu} {millis}\nnode_memory_working_set_bytes 5000 {millis}\n\
         pod_cpu_usage_seconds_total{{namespace=\"ns\",pod=\"p\"}} 9 {millis}\nresource_scrape_error 0\n"
    )
}

fn look(at: i64, cpu: f64, started: i64) -> Look {
    Look::read(&text(at, cpu, started), Wall::from_secs(0))
}

fn looks(first: Look, second: Look) -> Looks {
    let mut looks = Looks::begin(first);
    looks.note(second);
    looks
}

fn of_pod(looks: &Looks) -> Option<(i64, i64)> {
    looks.pod("ns", "p").map(|all| (all[0].1.nano_cores, all[0].1.window / SECOND))
}

#[test]
fn a_rate_is_the_difference_of_two_looks() {
    let two = looks(look(100, 10.0, 5), look(115, 13.0, 5));
    assert_eq!(of_pod(&two), Some((200_000_000, 15)));
    let node = two.node().unwrap();
    assert_eq!((node.nano_cores, node.bytes, node.at), (200_000_000, 5000, 115 * SECOND));
    let one = Looks::begin(look(100, 10.0, 5));
    assert_eq!((one.node(), of_pod(&one), one.are_two()), (None, None, false));
}

#[test]
fn who_has_no_second_point_is_left_out_or_counted_from_its_start() {
    let nobody = Look::read("node_cpu_usage_seconds_total 1 100000\n", Wall::from_secs(0));
    let table = [
        ("nine seconds old", nobody.clone(), look(115, 1.8, 106), None),
        ("ten seconds old", nobody.clone(), look(115, 2.0, 105), Some((200_000_000, 10))),
        ("older than its first look", nobody, look(115, 2.0, 1), None),
        ("began anew", look(100, 50.0, 5), look(115, 1.0, 105), Some((100_000_000, 10))),
        ("went back", look(100, 50.0, 5), look(115, 1.0, 5), None),
        ("told twice the same", look(100, 50.0, 5), look(100, 50.0, 5), None),
    ];
    for (what, first, second, want) in table {
        assert_eq!(of_pod(&looks(first, second)), want, "{what}");
    }
}

#[test]
fn a_pod_is_told_of_when_all_its_containers_are() {
    let young = "container_cpu_usage_seconds_total{container=\"new\",namespace=\"ns\",pod=\"p\"} 1 115000\n";
    let second = Look::read(&(text(115, 13.0, 5) + young), Wall::from_secs(0));
    let two = looks(look(100, 10.0, 5), second);
    assert_eq!(two.pod("ns", "p"), None);
    assert!(two.node().is_some());
    assert_eq!(two.pod("ns", "nobody"), None);
}

#[test]
fn objects_are_as_clients_read_them() {
    let two = looks(look(100, 10.0, 5), look(115, 13.0, 5));
    let source =
        json!({"metadata": {"name": "p", "namespace": "ns", "labels": {"a": "b"}, "uid": "u"}, "spec": {}});
    let pod = of_pod_object(&two, &source);
    assert_eq!(
        pod,
        json!({
            "kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
            "metadata": {"name": "p", "namespace": "ns", "labels": {"a": "b"},
                         "creationTimestamp": "1970-01-01T00:02:00Z"},
            "timestamp": "1970-01-01T00:01:55Z", "window": "15s",
            "containers": [{"name": "c", "usage": {"cpu": "200000000n", "memory": "1Mi"}}],
        })
    );
    let node = super::of_node(&json!({"metadata": {"name": "n"}}), two.node().unwrap(), Wall::from_secs(120));
    assert_eq!(node["usage"], json!({"cpu": "200000000n", "memory": "5000"}));
    assert_eq!(node["metadata"], json!({"name": "n", "creationTimestamp": "1970-01-01T00:02:00Z"}));
    assert_eq!((window(1_050_000_000), window(400_000_000)), ("1.05s".to_owned(), "0.4s".to_owned()));
}

fn of_pod_object(looks: &Looks, source: &Value) -> Value {
    super::of_pod(source, &looks.pod("ns", "p").unwrap(), Wall::from_secs(120))
}

#[test]
fn odd_lines_harm_nobody() {
    let odd = "container_cpu_usage_seconds_total{container=\"a}\\\"b\\\\\",namespace=\"n\\nx\",pod=\"p\"} 1 5\n\
               container_cpu_usage_seconds_total{container=\"c\",pod=\"p\"} 1\n\
               container_cpu_usage_seconds_total{container=\"c\n\
               node_cpu_usage_seconds_total NaN\nnode_cpu_usage_seconds_total\n{} 1\n\n";
    let look = Look::read(odd, Wall::from_secs(9));
    assert_eq!(look.node, Point::default());
    let key = ("n\nx".to_owned(), "p".to_owned());
    assert_eq!(look.pods[&key].keys().collect::<Vec<_>>(), ["a}\"b\\"]);
    assert_eq!(look.pods.len(), 1);
}

proptest! {
    #[test]
    fn no_text_is_too_odd(text in "(container_|node_|[{}\",\\\\=a-c0-9 \n]){0,60}", cpu in -1e18f64..1e18) {
        let first = Look::read(&text, Wall::from_secs(1));
        let second = Look::read(&format!("node_cpu_usage_seconds_total {cpu} 1\n{text}"), Wall::from_secs(2));
        let looks = looks(first, second);
        if let Some(used) = looks.node() {
            prop_assert!(used.nano_cores >= 0 && used.window > 0);
        }
    }
}
