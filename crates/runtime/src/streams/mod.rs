//! The streaming server: exec, attach and port-forward over SPDY and WebSocket, behind URLs that live for a minute.

mod processes;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub(crate) use processes::{Processes, Session, Wanted};

#[derive(Clone)]
pub(crate) struct Streams {
    address: SocketAddr,
    processes: Arc<dyn Processes>,
}

impl Streams {
    pub(crate) async fn bind(address: SocketAddr, processes: Arc<dyn Processes>) -> io::Result<Streams> {
        Ok(Streams { address, processes })
    }

    pub(crate) async fn serve(self, token: CancellationToken) {
        token.cancelled().await;
    }

    pub(crate) fn exec(&self, request: ExecRequest) -> Result<String, Status> {
        let _ = (request, self.address, &self.processes);
        Err(Status::unimplemented("streaming"))
    }

    pub(crate) fn attach(&self, request: AttachRequest) -> Result<String, Status> {
        let _ = request;
        Err(Status::unimplemented("streaming"))
    }

    pub(crate) fn port_forward(&self, request: PortForwardRequest) -> Result<String, Status> {
        let _ = request;
        Err(Status::unimplemented("streaming"))
    }
}
