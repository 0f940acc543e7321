//! Probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Scope, non_negative, one_of, port_number};
use crate::field::{FieldErrors, Path};
use crate::names;

pub(super) fn all(errors: &mut FieldErrors, scope: &Scope<'_>, c: &Container, at: &Path) {
    let grace = scope.grace();
    if let Some(lifecycle) = &c.lifecycle {
        let at = at.child("lifecycle");
        let hooks = [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)];
        for (name, hook) in hooks {
            if let Some(hook) = hook {
                handler(errors, &Handler::of_hook(hook), grace, &at.child(name));
            }
        }
        if let Some(signal) = lifecycle.stop_signal.as_deref() {
            stop_signal(errors, scope, signal, &at.child("stopSignal"));
        }
    }
    for (name, value) in [("livenessProbe", &c.liveness_probe), ("startupProbe", &c.startup_probe)] {
        let Some(value) = value else { continue };
        probe(errors, value, grace, &at.child(name));
        if value.success_threshold.unwrap_or_default() != 1 {
            let at = at.child(name).child("successThreshold");
            errors.invalid(&at, value.success_threshold.unwrap_or_default(), "must be 1");
        }
    }
    if let Some(value) = &c.readiness_probe {
        let at = at.child("readinessProbe");
        probe(errors, value, grace, &at);
        if let Some(seconds) = value.termination_grace_period_seconds {
            let at = at.child("terminationGracePeriodSeconds");
            errors.invalid(&at, seconds, "must not be set for readinessProbes");
        }
    }
}

/// What a probe and a hook have in common.
#[derive(Default)]
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http: Option<&'a HTTPGetAction>,
    tcp: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

impl<'a> Handler<'a> {
    fn of_probe(p: &'a Probe) -> Self {
        let (exec, http) = (p.exec.as_ref(), p.http_get.as_ref());
        Handler { exec, http, tcp: p.tcp_socket.as_ref(), grpc: p.grpc.as_ref(), sleep: None }
    }

    fn of_hook(h: &'a LifecycleHandler) -> Self {
        let (exec, http) = (h.exec.as_ref(), h.http_get.as_ref());
        Handler { exec, http, tcp: h.tcp_socket.as_ref(), grpc: None, sleep: h.sleep.as_ref() }
    }
}

fn probe(errors: &mut FieldErrors, probe: &Probe, grace: Option<i64>, at: &Path) {
    handler(errors, &Handler::of_probe(probe), grace, at);
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        non_negative(errors, i64::from(value.unwrap_or_default()), &at.child(name));
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|s| *s <= 0) {
        errors.invalid(&at.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
}

fn handler(errors: &mut FieldErrors, h: &Handler<'_>, grace: Option<i64>, at: &Path) {
    let set = [
        ("exec", h.exec.is_some()),
        ("httpGet", h.http.is_some()),
        ("tcpSocket", h.tcp.is_some()),
        ("grpc", h.grpc.is_some()),
        ("sleep", h.sleep.is_some()),
    ];
    let mut kinds = set.iter().filter(|(_, set)| *set).map(|(name, _)| *name);
    let Some(first) = kinds.next() else { return errors.required(at, "must specify a handler type") };
    for kind in kinds {
        errors.forbidden(&at.child(kind), "may not specify more than 1 handler type");
    }
    let at = at.child(first);
    match first {
        "exec" if h.exec.is_some_and(|e| e.command.as_ref().is_none_or(Vec::is_empty)) => {
            errors.required(&at.child("command"), "");
        }
        "httpGet" => h.http.into_iter().for_each(|http| http_get(errors, http, &at)),
        "tcpSocket" => h.tcp.into_iter().for_each(|tcp| port(errors, &tcp.port, &at.child("port"))),
        "grpc" => h.grpc.into_iter().for_each(|g| port_number(errors, g.port, &at.child("port"))),
        "sleep" => {
            if let (Some(sleep), Some(grace)) = (h.sleep, grace)
                && !(0..=grace).contains(&sleep.seconds)
            {
                let message =
                    format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                errors.invalid(&at, sleep.seconds, message);
            }
        }
        _ => {}
    }
}

fn http_get(errors: &mut FieldErrors, http: &HTTPGetAction, at: &Path) {
    if http.path.as_deref().unwrap_or_default().is_empty() {
        errors.required(&at.child("path"), "");
    }
    port(errors, &http.port, &at.child("port"));
    one_of(errors, http.scheme.as_deref(), &["HTTP", "HTTPS"], &at.child("scheme"));
    for header in http.http_headers.iter().flatten() {
        errors.each(&at.child("httpHeaders"), &header.name, names::http_header_name(&header.name));
    }
}

fn port(errors: &mut FieldErrors, port: &IntOrString, at: &Path) {
    match port {
        IntOrString::Int(number) => port_number(errors, *number, at),
        IntOrString::String(name) => errors.each(at, name, names::port_name(name)),
    }
}

fn stop_signal(errors: &mut FieldErrors, scope: &Scope<'_>, signal: &str, at: &Path) {
    let Some(os) = &scope.spec.os else {
        return errors.forbidden(at, "may not be set for containers with empty `spec.os.name`");
    };
    let known =
        if os.name == "windows" { matches!(signal, "SIGKILL" | "SIGTERM") } else { is_signal(signal) };
    if !known {
        errors.unsupported(at, signal, &["SIGHUP", "SIGINT", "SIGKILL", "SIGQUIT", "SIGTERM", "SIGUSR1"]);
    }
}

/// Every signal name of Linux, real-time ones as `SIGRTMIN+n` and `SIGRTMAX-n`.
fn is_signal(name: &str) -> bool {
    const NAMES: &str = "ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV \
                         STKFLT STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX";
    let Some(name) = name.strip_prefix("SIG") else { return false };
    let offset = |rest: &str, max: u8| {
        rest.parse::<u8>().is_ok_and(|n| (1..=max).contains(&n) && !rest.starts_with('0'))
    };
    NAMES.split_ascii_whitespace().any(|n| n == name)
        || name.strip_prefix("RTMIN+").is_some_and(|n| offset(n, 15))
        || name.strip_prefix("RTMAX-").is_some_and(|n| offset(n, 14))
}
