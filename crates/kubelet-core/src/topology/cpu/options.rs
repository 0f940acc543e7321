//! cpuManagerPolicyOptions.

use std::collections::BTreeMap;

/// What the static policy was told beyond its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A core is given whole or not at all.
    pub full_cores: bool,
    /// Where one NUMA node is not enough, each gives as much.
    pub across_numa: bool,
    /// A socket is close enough.
    pub by_socket: bool,
    /// Different cores where there are any.
    pub across_cores: bool,
    /// Nobody at all runs on reserved CPUs, not even the shared pool.
    pub strict_reservation: bool,
    /// CPUs behind one last-level cache where it can be had.
    pub by_cache: bool,
}

/// Which young options the feature gates let in.
#[derive(Clone, Copy, Debug)]
pub struct OptionGates {
    pub alpha: bool,
    pub beta: bool,
}

type Member = fn(&mut Options) -> &mut bool;

/// How ripe an option is.
#[derive(Clone, Copy, PartialEq)]
enum Age {
    Alpha,
    Beta,
    Stable,
}

/// Every option, and where it goes.
const KNOWN: [(&str, Age, Member); 6] = [
    (FULL_CORES, Age::Stable, |o| &mut o.full_cores),
    (ACROSS_NUMA, Age::Beta, |o| &mut o.across_numa),
    (BY_SOCKET, Age::Alpha, |o| &mut o.by_socket),
    (ACROSS_CORES, Age::Alpha, |o| &mut o.across_cores),
    ("strict-cpu-reservation", Age::Stable, |o| &mut o.strict_reservation),
    (BY_CACHE, Age::Stable, |o| &mut o.by_cache),
];

const FULL_CORES: &str = "full-pcpus-only";
const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
pub(super) const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const BY_CACHE: &str = "prefer-align-cpus-by-uncorecache";

// === impl Options ===

impl Options {
    /// Reads the options, or says in upstream's words why they cannot be had.
    pub fn read(given: &BTreeMap<String, String>, gates: OptionGates) -> Result<Self, String> {
        let mut options = Options::default();
        for (name, value) in given {
            let known = KNOWN.iter().find(|(n, ..)| n == name);
            let (_, age, member) =
                known.ok_or_else(|| format!("unknown CPU Manager Policy option: {name:?}"))?;
            let (closed, stage) = match age {
                Age::Alpha => (!gates.alpha, "Alpha"),
                Age::Beta => (!gates.beta, "Beta"),
                Age::Stable => (false, ""),
            };
            if closed {
                return Err(format!(
                    "CPU Manager Policy {stage}-level Options not enabled, but option {name:?} provided"
                ));
            }
            *member(&mut options) =
                go_bool(value).map_err(|e| format!("bad value for option {name:?}: {e}"))?;
        }
        options.check()
    }

    fn check(self) -> Result<Self, String> {
        let together = [
            (self.full_cores && self.across_cores, FULL_CORES, ACROSS_CORES),
            (self.across_numa && self.across_cores, ACROSS_NUMA, ACROSS_CORES),
            (self.by_cache && self.across_cores, BY_CACHE, ACROSS_CORES),
            (self.by_cache && self.across_numa, BY_CACHE, ACROSS_NUMA),
        ];
        match together.iter().find(|(both, ..)| *both) {
            None => Ok(self),
            Some((_, a, b)) => {
                Err(format!("static policy options {a} and {b} can not be used at the same time"))
            }
        }
    }
}

/// What Go's strconv.ParseBool takes.
pub(in super::super) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_or_refused_in_upstreams_words() {
        let read = |given: &[(&str, &str)], alpha, beta| {
            let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            Options::read(&given, OptionGates { alpha, beta })
        };
        let full = Options { full_cores: true, ..Options::default() };
        assert_eq!(read(&[("full-pcpus-only", "true")], false, false), Ok(full));
        let told = |given: &[(&str, &str)]| read(given, false, false).err().unwrap_or_default();
        assert_eq!(told(&[("nope", "true")]), "unknown CPU Manager Policy option: \"nope\"");
        assert_eq!(
            told(&[("align-by-socket", "true")]),
            "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided"
        );
        assert_eq!(
            told(&[("distribute-cpus-across-numa", "true")]),
            "CPU Manager Policy Beta-level Options not enabled, but option \"distribute-cpus-across-numa\" provided"
        );
        assert_eq!(
            told(&[("strict-cpu-reservation", "yes")]),
            "bad value for option \"strict-cpu-reservation\": strconv.ParseBool: parsing \"yes\": invalid syntax"
        );
        let both = [("full-pcpus-only", "true"), ("distribute-cpus-across-cores", "true")];
        assert_eq!(
            read(&both, true, true).err().unwrap_or_default(),
            "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time"
        );
    }
}
