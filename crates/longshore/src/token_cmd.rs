//! `longshore token`: what lets other machines into the cluster.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::config::join::Token;
use aws_lc_rs::rand;
use base::duration::GoDuration;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Config, Request};
use jiff::Timestamp;
use lexopt::prelude::{Long, Short, Value as Word, ValueExt};
use serde_json::{Value, json};

use crate::discovery::{CLUSTER_INFO, pin_text, pins, read};
use crate::node_here::NodeHere;
use crate::{KUBERNETES, agent_cmd, console};

const USAGE: &str = "\
Make, show and take away the tokens that let other machines into the cluster.

Usage:
  longshore token create [TOKEN] [flags]    make one, and print the line to run on the other machine
  longshore token list [flags]
  longshore token delete ID|TOKEN … [flags]

Flags:
      --ttl DURATION        how long it lets machines in (default 24h0m0s; 0 for ever)
      --description TEXT    what it is for
      --kubeconfig FILE     of another cluster; without it KUBECONFIG, or the node of this machine
      --state-dir DIR       of the node, where several run
  -h, --help                this text
";

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const DAY: Duration = Duration::from_secs(24 * 3600);
/// kubeadm's, which its clusters give the rights of new nodes to.
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const PLAIN: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

#[derive(Debug, Default)]
struct Options {
    words: Vec<String>,
    ttl: Option<Duration>,
    description: String,
    kubeconfig: Option<PathBuf>,
    state_dir: Option<PathBuf>,
}

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let options = match parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            console::out(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            console::err(&format!("error: {message}\n\n{USAGE}"));
            return ExitCode::FAILURE;
        }
    };
    let done = agent_cmd::event_loop(2).and_then(|runtime| runtime.block_on(run(&options)));
    match done {
        Ok(text) => {
            console::out(&text);
            ExitCode::SUCCESS
        }
        Err(message) => {
            console::err(&format!("error: {message}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<String, String> {
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["create"] => create(options, fresh()?).await,
        ["create", token] => create(options, Token::parse(token)?).await,
        ["list"] => list(options).await,
        ["delete", ids @ ..] if !ids.is_empty() => delete(options, ids).await,
        [] => Err("say create, list or delete".to_owned()),
        [word, ..] => Err(format!("{word:?} is not understood here: say create, list or delete")),
    }
}

async fn create(options: &Options, token: Token) -> Result<String, String> {
    let client = client(options).await?;
    // First of all: without it nobody could join with the token.
    let (server, ca) = whereabouts(&client).await?;
    let pin = pins(&ca)?.first().map(pin_text).unwrap_or_default();
    let mut data = vec![
        ("token-id", token.id.clone()),
        ("token-secret", token.secret.clone()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("usage-bootstrap-signing", "true".to_owned()),
        ("auth-extra-groups", GROUP.to_owned()),
    ];
    let ttl = options.ttl.unwrap_or(DAY);
    if !ttl.is_zero() {
        let end = Timestamp::now().checked_add(ttl).map_err(|_| "--ttl: it is too long")?;
        data.push(("expiration", end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()));
    }
    if !options.description.is_empty() {
        data.push(("description", options.description.clone()));
    }
    let data: serde_json::Map<String, Value> =
        data.into_iter().map(|(key, text)| (key.to_owned(), STANDARD.encode(text).into())).collect();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{}", token.id), "namespace": "kube-system"},
        "data": data,
    });
    let made = client.ask_bytes(Request::post(SECRETS, secret.to_string())).await;
    made.map_err(|e| format!("make the token {}: {e}", token.id))?;
    Ok(format!("longshore join {server} --token {token} --discovery-token-ca-cert-hash {pin}\n"))
}

async fn list(options: &Options) -> Result<String, String> {
    let path = format!("{SECRETS}?fieldSelector=type%3Dbootstrap.kubernetes.io%2Ftoken");
    let answer = client(options).await?.ask_bytes(Request::get(path)).await;
    let answer = answer.map_err(|e| format!("list the tokens: {e}"))?;
    let all: Value = serde_json::from_slice(&answer).map_err(|e| format!("list the tokens: {e}"))?;
    Ok(table(all["items"].as_array().map(Vec::as_slice).unwrap_or_default(), Timestamp::now()))
}

/// The secret half is for who makes a token.
fn table(secrets: &[Value], now: Timestamp) -> String {
    let mut text = format!("{:<8} {:<22} {:<24} {}\n", "ID", "EXPIRES", "USAGES", "DESCRIPTION");
    for secret in secrets {
        let word = |key: &str| {
            let data = secret["data"][key].as_str().and_then(|data| STANDARD.decode(data).ok());
            data.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
        };
        let expires = match word("expiration") {
            never if never.is_empty() => "never".to_owned(),
            at if at.parse::<Timestamp>().is_ok_and(|at| at > now) => at,
            _ => "expired".to_owned(),
        };
        let uses = ["signing", "authentication"];
        let uses = uses.into_iter().filter(|name| word(&format!("usage-bootstrap-{name}")) == "true");
        let uses: Vec<&str> = uses.collect();
        let line =
            format!("{:<8} {expires:<22} {:<24} {}", word("token-id"), uses.join(","), word("description"));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

async fn delete(options: &Options, ids: &[&str]) -> Result<String, String> {
    let client = client(options).await?;
    let mut text = String::new();
    for id in ids {
        let id = id.split('.').next().unwrap_or_default();
        if id.len() != 6 || !id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            return Err(format!("{id:?} is no ID of a token: `longshore token list` shows them"));
        }
        let path = format!("{SECRETS}/bootstrap-token-{id}");
        let gone = client.ask_bytes(Request::delete(path, "")).await;
        gone.map_err(|e| format!("delete the token {id}: {e}"))?;
        text.push_str(&format!("deleted {id}\n"));
    }
    Ok(text)
}

async fn client(options: &Options) -> Result<Client, String> {
    let said = options.kubeconfig.clone();
    let of_shell = || std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = match said.or_else(|| of_shell().filter(|_| options.state_dir.is_none())) {
        Some(path) => path,
        None => NodeHere::find(options.state_dir.as_deref())?.kubeconfig(),
    };
    let config = Config::load(&path).map_err(|e| e.to_string())?;
    let options =
        client::Options { user_agent: format!("longshore-token/{KUBERNETES}"), ..client::Options::default() };
    Client::new(config, options).await.map_err(|e| e.to_string())
}

/// Where machines that join find the cluster, and whom they have to trust.
async fn whereabouts(client: &Client) -> Result<(String, String), String> {
    let missing = "nobody can join: the cluster has no ConfigMap kube-public/cluster-info";
    let answer = client.ask_bytes(Request::get(CLUSTER_INFO)).await.map_err(|e| format!("{missing}: {e}"))?;
    let map: Value = serde_json::from_slice(&answer).map_err(|e| format!("{missing}: {e}"))?;
    read(map["data"]["kubeconfig"].as_str().unwrap_or_default()).map_err(|e| format!("cluster-info: {e}"))
}

fn fresh() -> Result<Token, String> {
    let mut text = String::new();
    while text.len() < 22 {
        let mut octet = [0];
        rand::fill(&mut octet).map_err(|_| "the machine has no random numbers")?;
        // No letter is likelier than another.
        if octet[0] < 252 {
            text.push(char::from(PLAIN[usize::from(octet[0] % 36)]));
        }
    }
    let secret = text.split_off(6);
    Ok(Token { id: text, secret })
}

fn parse(args: &[OsString]) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    let text = |value: Result<OsString, lexopt::Error>| {
        value.and_then(|value| value.string()).map_err(|e| e.to_string())
    };
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("ttl") => {
                let said = text(parser.value())?;
                let said: GoDuration = said.parse().map_err(|e| format!("--ttl: {e}"))?;
                if said.is_negative() {
                    return Err(format!("--ttl: {said} is over already"));
                }
                options.ttl = Some(said.to_std());
            }
            Long("description") => options.description = text(parser.value())?,
            Long("kubeconfig") => options.kubeconfig = Some(text(parser.value())?.into()),
            Long("state-dir") => options.state_dir = Some(text(parser.value())?.into()),
            Word(word) => options.words.push(word.string().map_err(|e| e.to_string())?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Some(options))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_is_one_and_no_other() {
        let (one, other) = (fresh().unwrap(), fresh().unwrap());
        assert_eq!(Token::parse(&one.to_string()).unwrap(), one);
        assert_ne!(one.to_string(), other.to_string());
    }

    #[test]
    fn a_list_shows_no_secret() {
        let data = |words: &[(&str, &str)]| -> Value {
            let all = words.iter().map(|(key, text)| ((*key).to_owned(), STANDARD.encode(text).into()));
            json!({"data": all.collect::<serde_json::Map<String, Value>>()})
        };
        let secrets = [
            data(&[
                ("token-id", "abcdef"),
                ("token-secret", "0123456789abcdef"),
                ("usage-bootstrap-signing", "true"),
                ("usage-bootstrap-authentication", "true"),
                ("description", "the cellar"),
            ]),
            data(&[("token-id", "ghijkl"), ("expiration", "2020-01-01T00:00:00Z")]),
        ];
        let text = table(&secrets, Timestamp::now());
        assert!(!text.contains("0123456789abcdef"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "abcdef   never                  signing,authentication   the cellar");
        assert_eq!(lines[2], "ghijkl   expired");
    }

    #[test]
    fn words_and_flags_come_in_any_order() {
        let parsed = |text: &str| {
            let args: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            parse(&args)
        };
        let options = parsed("create --ttl 2h --description x").unwrap().unwrap();
        assert_eq!((options.words, options.ttl), (vec!["create".to_owned()], Some(DAY / 12)));
        assert_eq!(parsed("create --ttl=0").unwrap().unwrap().ttl, Some(Duration::ZERO));
        assert!(parsed("create --ttl soon").unwrap_err().starts_with("--ttl:"));
        assert!(parsed("create --help").unwrap().is_none() && parsed("create --what").is_err());
    }
}
