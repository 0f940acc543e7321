//! `/metrics/cadvisor`: the machine, its cgroups and those of Pods, as cAdvisor tells of them.

use std::fmt::{self, Write};

use base::metrics::{MetricType, Text};

use super::Look;
use super::families::{Family, MEASURED, SPEC};
use super::rows::{Row, rows};

pub(super) fn write(out: &mut dyn Write, look: &Look) -> fmt::Result {
    let mut text = Text::new(out);
    version(&mut text, look)?;
    let rows = rows(look);
    SPEC.iter().try_for_each(|f| family(&mut text, f, &rows, look, false))?;
    MEASURED.iter().try_for_each(|f| family(&mut text, f, &rows, look, true))?;
    machine(&mut text, look)?;
    for (name, help) in [
        ("container_scrape_error", "1 if containers could not be measured."),
        ("machine_scrape_error", "1 if the machine could not be measured."),
    ] {
        text.header(name, MetricType::Gauge, help)?;
        let failed = match name {
            "container_scrape_error" => look.blind,
            _ => look.signals.machine.memory.is_none(),
        };
        text.sample(name, &[], f64::from(u8::from(failed)), None)?;
    }
    Ok(())
}

fn family(text: &mut Text<'_>, family: &Family, rows: &[Row<'_>], look: &Look, timed: bool) -> fmt::Result {
    let Family(name, kind, help, of) = family;
    let mut written: Result<bool, fmt::Error> = Ok(false);
    for row in rows {
        of(row, look, &mut |more, value| {
            written = written.and_then(|begun| {
                if !begun {
                    text.header(name, *kind, help)?;
                }
                text.sample_of(name, &row.labels, more, value, timed.then_some(row.at))?;
                Ok(true)
            });
        });
    }
    written.map(drop)
}

fn machine(text: &mut Text<'_>, look: &Look) -> fmt::Result {
    let memory = look.signals.machine.memory.as_ref();
    let (processors, names) = (&look.processors, &look.identity);
    let labels = [
        ("boot_id", names.boot_id.as_str()),
        ("machine_id", names.machine_id.as_str()),
        ("system_uuid", names.system_uuid.as_str()),
    ];
    for (name, help, value) in [
        ("machine_cpu_cores", "Logical processors.", Some(processors.logical)),
        ("machine_cpu_physical_cores", "Cores.", processors.cores),
        ("machine_cpu_sockets", "Sockets.", processors.sockets),
        ("machine_memory_bytes", "Memory of the machine.", memory.map(|m| m.total)),
        ("machine_swap_bytes", "Swap of the machine.", memory.map(|m| m.swap_total)),
    ] {
        if let Some(value) = value {
            text.header(name, MetricType::Gauge, help)?;
            text.sample(name, &labels, value as f64, None)?;
        }
    }
    Ok(())
}

/// Which kernel and system these figures come from. There is no cAdvisor and no Docker here.
fn version(text: &mut Text<'_>, look: &Look) -> fmt::Result {
    let name = "cadvisor_version_info";
    let kernel = rustix::system::uname();
    text.header(name, MetricType::Gauge, "The kernel and the system.")?;
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", kernel.release().to_str().unwrap_or_default()),
        ("osVersion", look.identity.os_image.as_str()),
    ];
    text.sample(name, &labels, 1.0, None)
}
