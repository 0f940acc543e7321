//! Extenders are asked over HTTP, one after the other, while the Pod's turn lasts.

use std::collections::HashMap;

use api::config::scheduler::{Extender, ExtenderTls};
use client::{Client, ClientError, Config, Identity, Options, Request, Source};
use scheduler_core::cluster::Cluster;
use scheduler_core::extender::{self, Objects};
use scheduler_core::pod::Pod;
use scheduler_core::preemption::Candidate;
use scheduler_core::status::Diagnosis;

/// The largest answer: all nodes of a large cluster.
const ANSWER_MAX: usize = 256 << 20;

/// One extender and the way to it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    config: Extender,
    client: Client,
}

/// All of them, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extenders(Vec<Asked>);

// === impl Extenders ===

impl Extenders {
    /// Reads the certificates that the configuration names.
    pub(crate) async fn connect(configured: &[Extender], version: &str) -> Result<Extenders, ClientError> {
        let mut all = Vec::new();
        for config in extender::in_order(configured) {
            let options = Options {
                user_agent: format!("kube-scheduler/{version}"),
                timeout: config.http_timeout.to_std(),
                answer_max: ANSWER_MAX,
                repeats: 0,
                ..Options::default()
            };
            let client = Client::new(access(&config)?, options).await?;
            all.push(Asked { config, client });
        }
        Ok(Extenders(all))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has_filter(&self) -> bool {
        self.0.iter().any(|e| !e.config.filter_verb.is_empty())
    }

    pub(crate) fn has_scores(&self) -> bool {
        self.0.iter().any(|e| !e.config.prioritize_verb.is_empty())
    }

    fn interested<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Asked> {
        self.0.iter().filter(|e| extender::is_interested(&e.config, pod))
    }

    /// The nodes that all of them leave.
    pub(crate) async fn filter(
        &self,
        objects: &Objects,
        cluster: &Cluster,
        pod: &Pod,
        mut feasible: Vec<usize>,
        diagnosis: &mut Diagnosis,
    ) -> Result<Vec<usize>, String> {
        for asked in self.interested(pod).filter(|e| !e.config.filter_verb.is_empty()) {
            if feasible.is_empty() {
                break;
            }
            let body = extender::ask_about_nodes(&asked.config, objects, cluster, pod, &feasible)?;
            let answer = asked.send(&asked.config.filter_verb, body).await;
            let left = answer.and_then(|answer| {
                extender::read_filter(&asked.config, cluster, &feasible, &answer, diagnosis)
            });
            match left {
                Ok(left) => feasible = left,
                Err(error) if asked.config.ignorable => asked.skip(&error),
                Err(error) => return Err(error),
            }
        }
        Ok(feasible)
    }

    /// What they add to the nodes' scores. One that fails adds nothing.
    pub(crate) async fn prioritize(
        &self,
        objects: &Objects,
        cluster: &Cluster,
        pod: &Pod,
        feasible: &[usize],
    ) -> HashMap<usize, i64> {
        let mut extra = HashMap::new();
        for asked in self.interested(pod).filter(|e| !e.config.prioritize_verb.is_empty()) {
            let answer = match extender::ask_about_nodes(&asked.config, objects, cluster, pod, feasible) {
                Ok(body) => asked.send(&asked.config.prioritize_verb, body).await,
                Err(error) => Err(error),
            };
            let added = answer
                .and_then(|answer| extender::read_priorities(&asked.config, cluster, &answer, &mut extra));
            if let Err(error) = added {
                asked.skip(&error);
            }
        }
        extra
    }

    /// The candidates that all of them leave.
    pub(crate) async fn preempt(
        &self,
        objects: &Objects,
        cluster: &Cluster,
        pod: &Pod,
        mut candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, String> {
        for asked in self.interested(pod).filter(|e| !e.config.preempt_verb.is_empty()) {
            if candidates.is_empty() {
                break;
            }
            let body = extender::ask_about_victims(&asked.config, objects, cluster, pod, &candidates)?;
            let answer = asked.send(&asked.config.preempt_verb, body).await;
            match answer.and_then(|answer| extender::read_victims(&asked.config, cluster, &answer)) {
                Ok(left) => candidates = left,
                Err(error) if asked.config.ignorable => asked.skip(&error),
                Err(error) => return Err(error),
            }
        }
        Ok(candidates)
    }

    /// Lets the one that binds do it; false where none does.
    pub(crate) async fn bind(&self, pod: &Pod, node: &str) -> Result<bool, String> {
        for asked in self.interested(pod).filter(|e| !e.config.bind_verb.is_empty()) {
            let answer = asked.send(&asked.config.bind_verb, extender::ask_to_bind(pod, node)?).await;
            match answer.and_then(|answer| extender::read_binding(&answer)) {
                Ok(()) => return Ok(true),
                Err(error) if asked.config.ignorable => asked.skip(&error),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

// === impl Asked ===

impl Asked {
    async fn send(&self, verb: &str, body: String) -> Result<Vec<u8>, String> {
        let url = format!("{}/{verb}", self.client.server());
        match self.client.ask_bytes(Request::post(format!("/{verb}"), body).once()).await {
            Ok(answer) => Ok(answer.to_vec()),
            Err(ClientError::Api { answer, .. }) => {
                Err(format!("failed {verb} with extender at URL {url}, code {}", answer.code))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn skip(&self, error: &str) {
        let extender = self.config.url_prefix.as_str();
        tracing::info!(extender, error, "an extender is left out: it failed");
    }
}

/// How it is reached, and how both sides prove who they are.
fn access(config: &Extender) -> Result<Config, ClientError> {
    let tls = config.tls_config.clone().unwrap_or_default();
    let source = |data: &str, file: &str| -> Result<Option<Source>, ClientError> {
        let inline = ExtenderTls::decode(data).map_err(ClientError::Credentials)?;
        Ok(inline.map(Source::Inline).or_else(|| (!file.is_empty()).then(|| Source::File(file.into()))))
    };
    let ca = source(&tls.ca_data, &tls.ca_file)?;
    let certificate = source(&tls.cert_data, &tls.cert_file)?.zip(source(&tls.key_data, &tls.key_file)?);
    Ok(Config {
        tls_server_name: Some(tls.server_name).filter(|name| !name.is_empty()),
        // Upstream's rule: whoever asks for HTTPS and names no authority trusts any.
        insecure: tls.insecure || (config.enable_https && ca.is_none()),
        ca,
        identity: Identity { certificate, ..Identity::default() },
        ..Config::plain(config.url_prefix.trim_end_matches('/'))
    })
}

#[cfg(test)]
mod tests;
