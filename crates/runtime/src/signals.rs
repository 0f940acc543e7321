//! By which signal a container is asked to stop.

use cri::v1::Signal;

use crate::books::Container;

const SIGTERM: u32 = 15;
pub(crate) const SIGKILL: u32 = 9;
const SIGRTMIN: u32 = 34;
const SIGRTMAX: u32 = 64;

/// As the kernel numbers them on the architectures we build for.
const NAMES: [(&str, u32); 35] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
    ("UNUSED", 31),
];

/// The Pod's choice, the image's, or SIGTERM: the kernel's number and the CRI's.
pub(crate) fn stop(container: &Container) -> (u32, Signal) {
    let of_pod = container.config.stop_signal();
    let name = match of_pod {
        Signal::RuntimeDefault => container.image.stop_signal.clone(),
        chosen => chosen.as_str_name().trim_start_matches("SIGNAL_").to_owned(),
    };
    let number = number(&name).unwrap_or(SIGTERM);
    (number, cri(number))
}

/// `SIGTERM`, `term`, `15`, `SIGRTMIN+3`.
fn number(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse::<u32>() {
        return Some(number).filter(|number| (1..=SIGRTMAX).contains(number));
    }
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let real_time = |rest: &str, plus: &[&str], minus: &[&str], from: u32| {
        let after = |signs: &[&str]| {
            signs.iter().find_map(|sign| rest.strip_prefix(sign)).and_then(|n| n.parse::<u32>().ok())
        };
        let number = match (rest, after(plus), after(minus)) {
            ("", ..) => Some(from),
            (_, Some(more), _) => from.checked_add(more),
            (_, _, Some(less)) => from.checked_sub(less),
            _ => None,
        };
        number.filter(|number| (SIGRTMIN..=SIGRTMAX).contains(number))
    };
    if let Some(rest) = short.strip_prefix("RTMIN") {
        return real_time(rest, &["+", "PLUS"], &[], SIGRTMIN);
    }
    if let Some(rest) = short.strip_prefix("RTMAX") {
        return real_time(rest, &[], &["-", "MINUS"], SIGRTMAX);
    }
    NAMES.iter().find(|(known, _)| *known == short).map(|(_, number)| *number)
}

fn cri(number: u32) -> Signal {
    let named = NAMES.iter().find(|(_, n)| *n == number).map(|(name, _)| format!("SIGNAL_SIG{name}"));
    let name = named.unwrap_or_else(|| match (number - SIGRTMIN.min(number), SIGRTMAX - number) {
        (0, _) => "SIGNAL_SIGRTMIN".to_owned(),
        (_, 0) => "SIGNAL_SIGRTMAX".to_owned(),
        (up, down) if up <= down => format!("SIGNAL_SIGRTMINPLUS{up}"),
        (_, down) => format!("SIGNAL_SIGRTMAXMINUS{down}"),
    });
    Signal::from_str_name(&name).unwrap_or(Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_many_names_and_one_number() {
        let rows = [
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMINPLUS3", Some(37)),
            ("RTMAX-1", Some(63)),
            ("SIGRTMAX", Some(64)),
            ("SIGNONE", None),
            ("0", None),
            ("65", None),
            ("RTMIN+99", None),
            ("", None),
        ];
        for (name, want) in rows {
            assert_eq!(number(name), want, "{name}");
        }
    }

    #[test]
    fn every_number_has_a_name_in_the_cri_and_comes_back() {
        for at in (1..32).chain(SIGRTMIN..=SIGRTMAX) {
            let name = cri(at).as_str_name().trim_start_matches("SIGNAL_").to_owned();
            assert_eq!(number(&name), Some(at), "{name}");
        }
    }
}
