//! The demo's web page, and the bare TCP listener that probes connect to.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::commands::{die_of_term, option, seconds, sorted_env};

const MAX_HEAD: u64 = 8 * 1024;
const MAX_VISITORS: usize = 64;

/// What the page knows about itself.
#[derive(Debug)]
struct Site {
    started: Instant,
    ready_after: Duration,
    hits: AtomicU64,
    ready: AtomicBool,
    healthy: AtomicBool,
    visitors: AtomicUsize,
}

/// What goes back to the visitor.
#[derive(Debug, PartialEq)]
struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

pub(crate) fn serve(args: &[String]) -> Result<ExitCode, String> {
    die_of_term(0);
    let listener = listen(option(args, "--port").unwrap_or("8080"))?;
    let ready_after = option(args, "--ready-after").map_or(Ok(Duration::ZERO), seconds)?;
    let site = Arc::new(Site::new(ready_after));
    for stream in listener.incoming().flatten() {
        if site.visitors.fetch_add(1, Ordering::Relaxed) >= MAX_VISITORS {
            site.visitors.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let site = Arc::clone(&site);
        thread::spawn(move || {
            let _ = talk(&site, stream);
            site.visitors.fetch_sub(1, Ordering::Relaxed);
        });
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn tcp(args: &[String]) -> Result<ExitCode, String> {
    die_of_term(0);
    let listener = listen(args.first().ok_or("which port?")?)?;
    for stream in listener.incoming() {
        drop(stream);
    }
    Ok(ExitCode::SUCCESS)
}

/// On every address of both families, or of the old one where the new one is switched off.
fn listen(port: &str) -> Result<TcpListener, String> {
    let port: u16 = port.parse().map_err(|_| format!("{port:?} is no port"))?;
    let listener = TcpListener::bind(("::", port))
        .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
        .map_err(|e| format!("listening on port {port}: {e}"))?;
    println!("listening on port {port}");
    Ok(listener)
}

fn talk(site: &Site, mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut head = Vec::new();
    let mut byte = [0; 512];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") && (head.len() as u64) < MAX_HEAD {
        match stream.read(&mut byte)? {
            0 => break,
            n => head.extend_from_slice(&byte[..n]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split_whitespace().nth(1).unwrap_or("/");
    println!("{}", head.lines().next().unwrap_or_default());
    let answer = site.answer(path.split('?').next().unwrap_or("/"));
    let Answer { status, kind, body } = answer;
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

// === impl Site ===

impl Site {
    fn new(ready_after: Duration) -> Self {
        Site {
            started: Instant::now(),
            ready_after,
            hits: AtomicU64::new(0),
            ready: AtomicBool::new(true),
            healthy: AtomicBool::new(true),
            visitors: AtomicUsize::new(0),
        }
    }

    fn answer(&self, path: &str) -> Answer {
        match path {
            "/" => Answer { status: "200 OK", kind: "text/html; charset=utf-8", body: self.page() },
            "/healthz" => Answer::health(self.healthy.load(Ordering::Relaxed)),
            "/readyz" => Answer::health(self.is_ready()),
            "/toggle" => Answer::plain(format!("ready: {}\n", flip(&self.ready))),
            "/toggle-health" => Answer::plain(format!("healthy: {}\n", flip(&self.healthy))),
            "/env" => Answer::plain(sorted_env().join("\n") + "\n"),
            "/hostname" => Answer::plain(hostname() + "\n"),
            _ => Answer { status: "404 Not Found", kind: "text/plain", body: "nothing here\n".into() },
        }
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed) && self.started.elapsed() >= self.ready_after
    }

    fn page(&self) -> String {
        let hits = self.hits.fetch_add(1, Ordering::Relaxed) + 1;
        let up = self.started.elapsed().as_secs();
        let name = |key: &str| std::env::var(key).unwrap_or_else(|_| "unknown".into());
        let ready = if self.is_ready() { "ready" } else { "not ready" };
        format!(
            "<!doctype html><title>{host}</title>\
             <style>body{{font:16px/1.6 system-ui;max-width:36em;margin:4em auto;padding:0 1em}}\
             b{{font-size:2em}}dt{{color:#777;float:left;width:8em}}</style>\
             <b>{host}</b><p>A Pod run by Longshore.</p><dl>\
             <dt>pod</dt><dd>{namespace}/{pod}</dd><dt>address</dt><dd>{ip}</dd>\
             <dt>state</dt><dd>{ready}</dd><dt>up</dt><dd>{up} s</dd><dt>visits</dt><dd>{hits}</dd></dl>\
             <p><a href=/toggle>toggle readiness</a> · <a href=/env>environment</a></p>\n",
            host = escape(&hostname()),
            namespace = escape(&name("POD_NAMESPACE")),
            pod = escape(&name("POD_NAME")),
            ip = escape(&name("POD_IP")),
        )
    }
}

// === impl Answer ===

impl Answer {
    fn plain(body: String) -> Self {
        Answer { status: "200 OK", kind: "text/plain; charset=utf-8", body }
    }

    fn health(good: bool) -> Self {
        if good {
            return Answer::plain("ok\n".into());
        }
        Answer { status: "503 Service Unavailable", kind: "text/plain", body: "not ready\n".into() }
    }
}

fn flip(switch: &AtomicBool) -> bool {
    !switch.fetch_xor(true, Ordering::Relaxed)
}

fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_follows_the_toggle() {
        let site = Site::new(Duration::ZERO);
        assert_eq!(site.answer("/readyz").status, "200 OK");
        assert_eq!(site.answer("/toggle").body, "ready: false\n");
        assert_eq!(site.answer("/readyz").status, "503 Service Unavailable");
        assert_eq!(site.answer("/healthz").status, "200 OK");
        assert_eq!(site.answer("/toggle").body, "ready: true\n");
        assert_eq!(site.answer("/readyz").status, "200 OK");
    }

    #[test]
    fn a_late_site_is_not_ready_at_first() {
        let site = Site::new(Duration::from_secs(3600));
        assert_eq!(site.answer("/readyz").status, "503 Service Unavailable");
        assert_eq!(site.answer("/healthz").status, "200 OK");
    }

    #[test]
    fn the_page_counts_visits_and_unknown_paths_are_refused() {
        let site = Site::new(Duration::ZERO);
        site.answer("/");
        assert!(site.answer("/").body.contains("<dd>2</dd>"));
        assert_eq!(site.answer("/nowhere").status, "404 Not Found");
    }
}
