//! Processors, memory and pressure, as the summary writes them of everybody. What is not known is left out.

use base::time::Wall;
use kubelet_core::stats::{CpuStats, MemoryStats, Stall, Stalls, SwapStats};
use serde_json::{Map, Value, json};

pub(super) fn cpu(cpu: &CpuStats) -> Value {
    fields([
        ("time", Some(json!(stamp(cpu.at.secs())))),
        ("usageNanoCores", number(cpu.nano_cores)),
        ("usageCoreNanoSeconds", number(cpu.nanos)),
        ("psi", cpu.stalls.as_ref().map(stalls)),
    ])
}

pub(super) fn memory(memory: &MemoryStats) -> Value {
    fields([
        ("time", Some(json!(stamp(memory.at.secs())))),
        ("availableBytes", number(memory.available)),
        ("usageBytes", number(memory.usage)),
        ("workingSetBytes", number(memory.working_set)),
        ("rssBytes", number(memory.rss)),
        ("pageFaults", number(memory.faults)),
        ("majorPageFaults", number(memory.major_faults)),
        ("psi", memory.stalls.as_ref().map(stalls)),
    ])
}

pub(super) fn swap(swap: &SwapStats) -> Value {
    fields([
        ("time", Some(json!(stamp(swap.at.secs())))),
        ("swapAvailableBytes", number(swap.available)),
        ("swapUsageBytes", number(swap.used)),
    ])
}

pub(super) fn io(of: &Stalls, at: Wall) -> Value {
    json!({ "time": stamp(at.secs()), "psi": stalls(of) })
}

fn stalls(of: &Stalls) -> Value {
    let stall =
        |s: &Stall| json!({ "total": s.total, "avg10": s.avg10, "avg60": s.avg60, "avg300": s.avg300 });
    json!({ "full": stall(&of.full), "some": stall(&of.some) })
}

/// An object of what there is.
pub(super) fn fields<const N: usize>(pairs: [(&str, Option<Value>); N]) -> Value {
    pairs
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect::<Map<_, _>>()
        .into()
}

pub(super) fn stamp(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn number(value: Option<u64>) -> Option<Value> {
    value.map(|n| json!(n))
}
