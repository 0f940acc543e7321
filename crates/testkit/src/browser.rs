//! A real browser on a node's network, driven over WebDriver: Debian's headless chromium, unpacked by `cargo xtask test`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::node::Node;

/// Where `cargo xtask test` unpacks it, in the cache.
const DIR: &str = "browser";
const DRIVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9515);
const TIMEOUT: Duration = Duration::from_secs(60);
const LARGEST: u64 = 64 << 20;

/// A browser with one window. It ends when it is dropped.
#[derive(Debug)]
pub struct Browser<'n> {
    node: &'n Node,
    driver: Child,
    session: String,
}

// === impl Browser ===

impl<'n> Browser<'n> {
    /// None where no browser was unpacked, with a word on stderr.
    #[must_use]
    pub fn start(node: &'n Node) -> Option<Browser<'n>> {
        let root = PathBuf::from(std::env::var_os("LONGSHORE_NODE_CACHE")?).join(DIR);
        if !root.is_dir() {
            tell(&format!("skipped: no browser in {}: run `cargo xtask test`", root.display()));
            return None;
        }
        let home = node.dir().join(DIR);
        fs::create_dir_all(&home).unwrap_or_else(|e| panic!("make {}: {e}", home.display()));
        let fonts = home.join("fonts.conf");
        let text = format!(
            "<?xml version=\"1.0\"?><fontconfig><dir>{}</dir><cachedir>{}</cachedir></fontconfig>",
            root.join("usr/share/fonts").display(),
            home.join("fonts").display()
        );
        fs::write(&fonts, text).unwrap_or_else(|e| panic!("write {}: {e}", fonts.display()));
        let log = File::create(home.join("driver.log")).unwrap_or_else(|e| panic!("make a log: {e}"));
        let driver = node
            .command(root.join("usr/bin/chromedriver"))
            .arg(format!("--port={}", DRIVER.port()))
            .env("LD_LIBRARY_PATH", libraries(&root))
            .env("FONTCONFIG_FILE", fonts)
            .env("HOME", &home)
            // The profile is the driver's to make: with one that is named it opens no window, and waits for one.
            .env("TMPDIR", &home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("start chromedriver: {e}"));
        let mut browser = Browser { node, driver, session: String::new() };
        browser.open_session(&root);
        Some(browser)
    }

    fn open_session(&mut self, root: &Path) {
        let program = root.join("usr/lib/chromium/chromium-headless-shell");
        // As root there is no sandbox to be had; what is looked at is ours.
        let args = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--lang=en-US"];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "acceptInsecureCerts": true,
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": program, "args": args},
        }}});
        let end = Instant::now() + TIMEOUT;
        let opened = loop {
            match self.ask("POST", "/session", Some(&wanted)) {
                Ok(opened) => break opened,
                Err(error) => assert!(Instant::now() < end, "the browser does not start: {error}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        self.session = format!("/session/{}", opened["sessionId"].as_str().unwrap_or_default());
    }

    pub fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({"url": url}));
    }

    /// What a script returns.
    #[must_use]
    pub fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until a script returns true.
    #[track_caller]
    pub fn wait(&self, what: &str, script: &str) {
        let end = Instant::now() + TIMEOUT;
        while self.run(script) != Value::Bool(true) {
            let page = self.run("return document.body.innerText");
            assert!(Instant::now() < end, "not {what} in time: {script}\nThe page:\n{page}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Keys as somebody types them; what WebDriver calls Enter is `\u{e007}`.
    pub fn keys(&self, text: &str) {
        let press = |c: char| {
            [
                json!({"type": "keyDown", "value": c.to_string()}),
                json!({"type": "keyUp", "value": c.to_string()}),
            ]
        };
        let keys: Vec<Value> = text.chars().flat_map(press).collect();
        self.call("POST", "/actions", &json!({"actions": [{"type": "key", "id": "k", "actions": keys}]}));
    }

    pub fn size(&self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": params});
        self.call("POST", "/goog/cdp/execute", &command);
    }

    /// What is in the window, as PNG.
    #[must_use]
    pub fn picture(&self) -> Vec<u8> {
        let text = self.call("GET", "/screenshot", &Value::Null);
        BASE64_STANDARD.decode(text.as_str().unwrap_or_default()).unwrap_or_default()
    }

    /// What the browser complained about since it was last asked.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let all = self.call("POST", "/se/log", &json!({"type": "browser"}));
        let lines = all.as_array().into_iter().flatten();
        lines.filter_map(|line| line["message"].as_str().map(str::to_owned)).collect()
    }

    #[track_caller]
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        let body = Some(body).filter(|b| !b.is_null());
        self.ask(method, &path, body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let inside = self.node.inside(|| exchange(method, path, &body).map_err(|e| e.to_string()));
        let (status, answer) = inside.map_err(|e| e.to_string())??;
        let answer: Value = serde_json::from_slice(&answer).map_err(|e| e.to_string())?;
        if status == 200 { Ok(answer["value"].clone()) } else { Err(answer["value"].to_string()) }
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        // With its session the browser ends, too; the node's janitor takes what is left.
        let _ = self.ask("DELETE", &self.session.clone(), None);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn libraries(root: &Path) -> String {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let below = ["usr/lib", "lib"].map(|top| root.join(top).join(&triple).display().to_string());
    format!("{}:{}:{}/pulseaudio", below[0], below[1], below[0])
}

fn exchange(method: &str, path: &str, body: &str) -> std::io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect_timeout(&DRIVER, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {DRIVER}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut reader = BufReader::new(stream);
    let (mut status, mut length, mut line) = (0, LARGEST, String::new());
    while reader.read_line(&mut line)? > 2 {
        if status == 0 {
            status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(500);
        } else if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(LARGEST);
        }
        line.clear();
    }
    let mut answer = Vec::new();
    reader.take(length.min(LARGEST)).read_to_end(&mut answer)?;
    Ok((status, answer))
}

#[allow(clippy::print_stderr)]
fn tell(text: &str) {
    eprintln!("{text}");
}
