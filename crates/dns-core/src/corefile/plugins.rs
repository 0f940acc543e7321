//! The plugins, a function for each and a line in the table.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::tokens::Directive;
use super::{
    Cache, Corefile, Error, Forward, Hosts, Kubernetes, Match, Part, PodMode, Policy, Rewrite, Server,
    Upstream,
};
use crate::name::{self, Name};

type Reader = fn(&mut Corefile, &mut Server, &Directive) -> Result<(), String>;

/// What can be in a server's block.
const PLUGINS: &[(&str, Reader)] = &[
    ("bufsize", bufsize),
    ("cache", cache),
    ("errors", errors),
    ("forward", forward),
    ("health", health),
    ("hosts", hosts),
    ("kubernetes", kubernetes),
    ("loadbalance", loadbalance),
    ("log", log),
    ("loop", find_loops),
    ("prometheus", prometheus),
    ("ready", ready),
    ("reload", reload),
    ("rewrite", rewrite),
];

/// More upstreams than this are refused, as CoreDNS does.
const UPSTREAMS: usize = 15;
/// Entries of each half of a cache, and the most that may be asked for.
const CAPACITY: usize = 9984;
const CAPACITY_MAX: usize = 100_000;

pub(super) fn read(file: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), Error> {
    let Some((_, reader)) = PLUGINS.iter().find(|(name, _)| *name == directive.name) else {
        let name = &directive.name;
        return Err(Error::at(directive.line, format!("plugin {name:?} is not supported")));
    };
    let fail = |what| Error::at(directive.line, format!("plugin {:?}: {what}", directive.name));
    reader(file, server, directive).map_err(fail)
}

/// A zone as Corefiles write it. Address ranges are zones of CoreDNS too, but not here.
pub(super) fn zone(text: &str) -> Result<Name, String> {
    if text.contains('/') {
        return Err(format!("{text} is an address range; write in-addr.arpa or ip6.arpa"));
    }
    name::parse(text).map_err(|error| error.to_string())
}

fn zones(texts: &[String]) -> Result<Vec<Name>, String> {
    texts.iter().map(|text| zone(text)).collect()
}

fn unknown(option: &Directive) -> String {
    format!("option {:?} in line {} is not supported", option.name, option.line)
}

fn none(directive: &Directive) -> Result<(), String> {
    match (directive.args.is_empty(), directive.body.first()) {
        (true, None) => Ok(()),
        (false, _) => Err(format!("{:?} is not supported", directive.args.join(" "))),
        (_, Some(option)) => Err(unknown(option)),
    }
}

fn one(directive: &Directive) -> Result<&str, String> {
    match directive.args.as_slice() {
        [one] => Ok(one),
        _ => Err(format!("{:?} needs one argument", directive.name)),
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number that is possible here"))
}

/// `5s`, `500ms`, or seconds without a unit, as some options have them.
fn duration(text: &str) -> Result<Duration, String> {
    let fail = || format!("{text:?} is not a duration");
    let split = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let count: u64 = digits.parse().map_err(|_| fail())?;
    let found = match unit {
        "ms" => Some(Duration::from_millis(count)),
        "s" | "" => Some(Duration::from_secs(count)),
        "m" => count.checked_mul(60).map(Duration::from_secs),
        "h" => count.checked_mul(3600).map(Duration::from_secs),
        _ => None,
    };
    found.ok_or_else(fail)
}

/// `:8080` is every address.
fn address(directive: &Directive, default: u16) -> Result<SocketAddr, String> {
    let every = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let Some(text) = directive.args.first() else { return Ok(every(default)) };
    if directive.args.len() > 1 {
        return Err("only one address is possible".into());
    }
    let fail = || format!("{text:?} is not an address with a port");
    match text.strip_prefix(':') {
        Some(port) => port.parse().map(every).map_err(|_| fail()),
        None => text.replace("localhost", "127.0.0.1").parse().map_err(|_| fail()),
    }
}

fn errors(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    server.logs_errors = true;
    none(directive)
}

fn log(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    server.logs_queries = true;
    none(directive)
}

fn find_loops(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    server.finds_loops = true;
    none(directive)
}

fn loadbalance(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    server.shuffles = true;
    match directive.args.as_slice() {
        [] => none(directive),
        [policy] if policy == "round_robin" && directive.body.is_empty() => Ok(()),
        _ => Err(format!("policy {:?} is not supported", directive.args.join(" "))),
    }
}

/// Changes are always seen; how often somebody wanted to look is checked and not needed.
fn reload(_: &mut Corefile, _: &mut Server, directive: &Directive) -> Result<(), String> {
    directive.args.iter().try_for_each(|period| duration(period).map(drop))
}

fn health(file: &mut Corefile, _: &mut Server, directive: &Directive) -> Result<(), String> {
    for option in &directive.body {
        match option.name.as_str() {
            // Nobody balances between several of us: to linger would help nobody.
            "lameduck" => _ = duration(one(option)?)?,
            _ => return Err(unknown(option)),
        }
    }
    file.health = Some(address(directive, 8080)?);
    Ok(())
}

fn ready(file: &mut Corefile, _: &mut Server, directive: &Directive) -> Result<(), String> {
    directive.body.first().map_or(Ok(()), |option| Err(unknown(option)))?;
    file.ready = Some(address(directive, 8181)?);
    Ok(())
}

fn prometheus(file: &mut Corefile, _: &mut Server, directive: &Directive) -> Result<(), String> {
    directive.body.first().map_or(Ok(()), |option| Err(unknown(option)))?;
    file.prometheus = Some(match directive.args.is_empty() {
        true => SocketAddr::from(([127, 0, 0, 1], 9153)),
        false => address(directive, 9153)?,
    });
    Ok(())
}

fn bufsize(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    let size = directive.args.first().map_or(Ok(1232), |text| number(text))?;
    match (512..=4096).contains(&size) {
        true => server.bufsize = Some(size),
        false => return Err(format!("{size} is not between 512 and 4096")),
    }
    Ok(())
}

fn kubernetes(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    if server.kubernetes.is_some() {
        return Err("is there already".into());
    }
    let mut made = Kubernetes {
        zones: if directive.args.is_empty() { server.zones.clone() } else { zones(&directive.args)? },
        pods: PodMode::Disabled,
        fallthrough: None,
        ttl: 5,
        uses_pod_names: false,
        ignores_empty_services: false,
        namespaces: Vec::new(),
    };
    for option in &directive.body {
        match option.name.as_str() {
            "pods" => {
                made.pods = match one(option)? {
                    "disabled" => PodMode::Disabled,
                    "insecure" => PodMode::Insecure,
                    "verified" => PodMode::Verified,
                    other => return Err(format!("pods {other:?} is not supported")),
                }
            }
            "fallthrough" => made.fallthrough = Some(zones(&option.args)?),
            "ttl" => {
                made.ttl = number(one(option)?)?;
                if made.ttl > 3600 {
                    return Err("ttl is between 0 and 3600".into());
                }
            }
            "endpoint_pod_names" => made.uses_pod_names = true,
            "ignore" if option.args == ["empty_service"] => made.ignores_empty_services = true,
            "namespaces" => made.namespaces.clone_from(&option.args),
            _ => return Err(unknown(option)),
        }
    }
    server.kubernetes = Some(made);
    Ok(())
}

fn hosts(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    let (file, rest) = match directive.args.split_first() {
        Some((file, rest)) => (file.clone(), zones(rest)?),
        None => ("/etc/hosts".to_owned(), Vec::new()),
    };
    let zones = if rest.is_empty() { server.zones.clone() } else { rest };
    let mut made = Hosts { file, zones, inline: Vec::new(), ttl: 3600, has_reverse: true, fallthrough: None };
    for option in &directive.body {
        match option.name.as_str() {
            "ttl" => made.ttl = number(one(option)?)?,
            "no_reverse" => made.has_reverse = false,
            // Files are looked at all the time.
            "reload" => _ = duration(one(option)?)?,
            "fallthrough" => made.fallthrough = Some(self::zones(&option.args)?),
            ip if ip.parse::<IpAddr>().is_ok() => made.inline.push(format!("{ip} {}", option.args.join(" "))),
            _ => return Err(unknown(option)),
        }
    }
    match server.hosts.replace(made) {
        Some(_) => Err("is there already".into()),
        None => Ok(()),
    }
}

fn forward(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    let Some((from, to)) = directive.args.split_first() else {
        return Err("needs a zone and upstreams".into());
    };
    if to.is_empty() || to.len() > UPSTREAMS {
        return Err(format!("needs between one and {UPSTREAMS} upstreams"));
    }
    let mut made = Forward {
        from: zone(from)?,
        to: to.iter().map(|text| upstream(text)).collect::<Result<_, _>>()?,
        except: Vec::new(),
        policy: Policy::Random,
        max_concurrent: None,
        max_fails: 2,
        health_check: Duration::from_millis(500),
        forces_tcp: false,
    };
    for option in &directive.body {
        match option.name.as_str() {
            "except" => made.except = zones(&option.args)?,
            "max_concurrent" => made.max_concurrent = Some(number(one(option)?)?).filter(|most| *most > 0),
            "max_fails" => made.max_fails = number(one(option)?)?,
            "force_tcp" => made.forces_tcp = true,
            // Connections are not kept, and datagrams are what is used anyhow.
            "expire" => _ = duration(one(option)?)?,
            "prefer_udp" => {}
            "health_check" => made.health_check = duration(one(option)?)?.max(Duration::from_millis(100)),
            "policy" => {
                made.policy = match one(option)? {
                    "random" => Policy::Random,
                    "round_robin" => Policy::RoundRobin,
                    "sequential" => Policy::Sequential,
                    other => return Err(format!("policy {other:?} is not supported")),
                }
            }
            _ => return Err(unknown(option)),
        }
    }
    server.forward.push(made);
    Ok(())
}

fn upstream(text: &str) -> Result<Upstream, String> {
    let plain = text.strip_prefix("dns://").unwrap_or(text);
    if let Some((scheme, _)) = plain.split_once("://") {
        return Err(format!("upstream {scheme}:// is not supported: only plain DNS is"));
    }
    if let Ok(address) = plain.parse() {
        return Ok(Upstream::Address(address));
    }
    if let Ok(ip) = plain.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(Upstream::Address((ip, 53).into()));
    }
    match plain.contains('/') {
        true => Ok(Upstream::File(plain.to_owned())),
        false => Err(format!("{text:?} is neither an address nor a file")),
    }
}

fn cache(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    let mut args = directive.args.as_slice();
    let half = |max_ttl| Part { capacity: CAPACITY, max_ttl, min_ttl: 5, disabled: Vec::new() };
    let (mut success, mut denial) = (half(3600), half(1800));
    if let Some((first, rest)) = args.split_first()
        && let Ok(ttl) = first.parse()
    {
        (success.max_ttl, denial.max_ttl) = (ttl, ttl);
        args = rest;
    }
    let zones = if args.is_empty() { server.zones.clone() } else { self::zones(args)? };
    let mut made = Cache { zones, success, denial, servfail: Duration::from_secs(5) };
    for option in &directive.body {
        match (option.name.as_str(), option.args.as_slice()) {
            ("success", sizes) => resize(&mut made.success, sizes)?,
            ("denial", sizes) => resize(&mut made.denial, sizes)?,
            ("servfail", [period]) => made.servfail = duration(period)?.min(Duration::from_secs(300)),
            ("disable", [half, rest @ ..]) => {
                let off = if rest.is_empty() { made.zones.clone() } else { self::zones(rest)? };
                match half.as_str() {
                    "success" => made.success.disabled = off,
                    "denial" => made.denial.disabled = off,
                    other => return Err(format!("disable {other:?} is not supported")),
                }
            }
            _ => return Err(unknown(option)),
        }
    }
    match server.cache.replace(made) {
        Some(_) => Err("is there already".into()),
        None => Ok(()),
    }
}

/// `CAPACITY [TTL] [MINTTL]`
fn resize(part: &mut Part, sizes: &[String]) -> Result<(), String> {
    let [capacity, ttls @ ..] = sizes else { return Err("a capacity is missing".into()) };
    part.capacity = number::<usize>(capacity)?.min(CAPACITY_MAX);
    match ttls {
        [] => {}
        [most] => part.max_ttl = number(most)?,
        [most, least] => (part.max_ttl, part.min_ttl) = (number(most)?, number(least)?),
        _ => return Err("too many numbers".into()),
    }
    Ok(())
}

fn rewrite(_: &mut Corefile, server: &mut Server, directive: &Directive) -> Result<(), String> {
    let args: Vec<&str> = directive.args.iter().map(String::as_str).collect();
    let args = args.strip_prefix(&["stop"]).unwrap_or(&args);
    let args = args.strip_suffix(&["answer", "auto"]).unwrap_or(args);
    let (how, from, to) = match args {
        ["name", from, to] | ["name", "exact", from, to] => (Match::Exact, from, to),
        ["name", "prefix", from, to] => (Match::Prefix, from, to),
        ["name", "suffix", from, to] => (Match::Suffix, from, to),
        _ => return Err(format!("{:?} is not supported", directive.args.join(" "))),
    };
    directive.body.first().map_or(Ok(()), |option| Err(unknown(option)))?;
    let end = |text: &str| match how {
        Match::Prefix => text.to_ascii_lowercase(),
        _ => format!("{}.", text.trim_end_matches('.').to_ascii_lowercase()),
    };
    server.rewrite.push(Rewrite { how, from: end(from), to: end(to) });
    Ok(())
}
