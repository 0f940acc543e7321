//! gRPC health checking protocol v1, plaintext.

use std::time::Duration;

use ::http::uri::PathAndQuery;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::join_host_port;
use crate::ports::{GrpcHealth, NetError};

const CHECK: PathAndQuery = PathAndQuery::from_static("/grpc.health.v1.Health/Check");

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct CheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct CheckResponse {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

pub(super) async fn health(
    host: &str,
    port: u16,
    service: &str,
    limit: Duration,
) -> Result<GrpcHealth, NetError> {
    let address = join_host_port(host, port);
    let deadline = Instant::now() + limit;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .and_then(|e| e.user_agent("kube-probe/1.36"))
        .map_err(|e| NetError(format!("error: failed to connect service at {address:?}: {e}")))?;
    // Upstream's client dials again until the time is up, so a refused connection is a timeout too.
    let channel = match timeout_at(deadline, endpoint.connect()).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(_)) | Err(_) => {
            let text = format!("timeout: failed to connect service {address:?} within {limit:?}");
            return Err(NetError(format!("{text}: context deadline exceeded")));
        }
    };
    match timeout_at(deadline, check(channel, service)).await {
        Ok(answer) => answer,
        Err(_) => Err(NetError(format!("timeout: health rpc did not complete within {limit:?}"))),
    }
}

async fn check(channel: tonic::transport::Channel, service: &str) -> Result<GrpcHealth, NetError> {
    let failed = |s: &Status| {
        let code = format!("{:?}", s.code());
        NetError(format!("error: health rpc probe failed: rpc error: code = {code} desc = {}", s.message()))
    };
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(64 * 1024);
    client.ready().await.map_err(|e| failed(&Status::unavailable(e.to_string())))?;
    let request = Request::new(CheckRequest { service: service.to_owned() });
    let codec = ProstCodec::<CheckRequest, CheckResponse>::default();
    match client.unary(request, CHECK, codec).await {
        Ok(answer) => Ok(match answer.into_inner().status {
            1 => GrpcHealth::Serving,
            other => GrpcHealth::NotServing(status_name(other)),
        }),
        Err(status) if status.code() == Code::Unimplemented => {
            Ok(GrpcHealth::Unimplemented(status.message().to_owned()))
        }
        Err(status) => Err(failed(&status)),
    }
}

fn status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".to_owned(),
        1 => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
