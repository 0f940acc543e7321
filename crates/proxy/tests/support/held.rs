//! Connections that last.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use proxy_core::objects::Family;

use super::Party;

/// A conversation that goes on while others come and go.
pub(crate) struct Held(TcpStream);

impl Held {
    pub(crate) fn open(party: &Party, to: &str) -> Self {
        let to: SocketAddr = to.parse().unwrap();
        let stream = party.ns.within(|| TcpStream::connect_timeout(&to, Duration::from_secs(5))).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Self(stream)
    }

    /// Who is at the other end.
    pub(crate) fn ask(&mut self) -> std::io::Result<String> {
        self.0.write_all(b"?")?;
        let mut name = [0];
        self.0.read_exact(&mut name)?;
        Ok(char::from(name[0]).to_string())
    }

    /// Without a farewell that the kernel would remember for minutes.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.0, Some(Duration::ZERO)).unwrap();
    }
}

/// Says its name as often as it is asked, in both families.
pub(crate) fn serve(party: &Party, port: u16) {
    for family in Family::BOTH {
        let listener = party.ns.within(|| TcpListener::bind((party.ip(family), port))).unwrap();
        let name = party.name;
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    while stream.read_exact(&mut [0]).and_then(|()| stream.write_all(name.as_bytes())).is_ok()
                    {
                    }
                });
            }
        });
    }
}
