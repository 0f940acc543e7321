//! Eviction thresholds: known signals, sane amounts, a grace period for every soft one.

use std::collections::BTreeMap;

use base::duration::GoDuration;
use base::quantity::Quantity;

use crate::config::check::Check;
use crate::config::kubelet::types::KubeletConfiguration;

const SIGNALS: [&str; 9] = [
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
];

pub(super) fn check(c: &KubeletConfiguration, check: &mut Check) {
    thresholds("evictionHard", &c.eviction_hard, check);
    thresholds("evictionSoft", &c.eviction_soft, check);
    for signal in c.eviction_soft.keys() {
        if !c.eviction_soft_grace_period.contains_key(signal) {
            let path = format!("evictionSoft[{signal}]");
            check.fail(&path, "needs a period in evictionSoftGracePeriod");
        }
    }
    for (signal, text) in &c.eviction_soft_grace_period {
        let path = format!("evictionSoftGracePeriod[{signal}]");
        known(&path, signal, check);
        match text.parse::<GoDuration>() {
            Err(e) => check.fail(&path, e.to_string()),
            Ok(d) if d.is_negative() => check.fail(&path, format!("{d} must not be negative")),
            Ok(_) => {}
        }
    }
    for (signal, text) in &c.eviction_minimum_reclaim {
        let path = format!("evictionMinimumReclaim[{signal}]");
        known(&path, signal, check);
        match text.strip_suffix('%') {
            Some(number) => percentage(&path, text, number, check),
            None => {
                if check.quantity(&path, text).is_some_and(Quantity::is_negative) {
                    check.fail(&path, format!("{text} must not be negative"));
                }
            }
        }
    }
}

fn thresholds(path: &str, map: &BTreeMap<String, String>, check: &mut Check) {
    for (signal, text) in map {
        let path = format!("{path}[{signal}]");
        known(&path, signal, check);
        match text.strip_suffix('%') {
            // 0% and 100% are how a threshold is turned off.
            Some(number) => percentage(&path, text, number, check),
            None => {
                let quantity = check.quantity(&path, text);
                if quantity.is_some_and(|q| q <= Quantity::ZERO) {
                    check.fail(&path, format!("{text} must be positive"));
                }
            }
        }
    }
}

fn known(path: &str, signal: &str, check: &mut Check) {
    if !SIGNALS.contains(&signal) {
        check.fail(path, format!("{signal:?} is not an eviction signal"));
    }
}

fn percentage(path: &str, text: &str, number: &str, check: &mut Check) {
    let percent = number.parse::<f64>().ok().filter(|n| (0.0..=100.0).contains(n));
    if percent.is_none() {
        check.fail(path, format!("{text:?} must be a percentage from 0% to 100%"));
    }
}
