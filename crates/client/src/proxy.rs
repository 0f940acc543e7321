//! Proxies on the way to the API server: `proxy-url` of a kubeconfig.

use std::fmt;
use std::io;

use base64::Engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes of a proxy's answer.
const ANSWER_MAX: usize = 16 << 10;

/// A proxy, and how to speak to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    kind: Scheme,
    host: String,
    port: u16,
    /// Name and password, as they stand in its URL.
    login: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// CONNECT of HTTP.
    Http,
    Socks5,
}

// === impl Proxy ===

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}:{}", self.kind, self.host, self.port)
    }
}

impl Proxy {
    /// Reads the URL; the error says what is wrong with it.
    pub(crate) fn parse(url: &str) -> Result<Proxy, String> {
        let (scheme, rest) = url.split_once("://").ok_or("is not a URL with a scheme")?;
        let (kind, usual) = match scheme {
            "http" => (Scheme::Http, 80),
            "socks5" => (Scheme::Socks5, 1080),
            "https" => return Err("a proxy that itself wants TLS is not supported".to_owned()),
            other => return Err(format!("unsupported scheme {other:?}, must be http or socks5")),
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (login, address) = match rest.rsplit_once('@') {
            Some((login, address)) => (Some(login.split_once(':').unwrap_or((login, ""))), address),
            None => (None, rest),
        };
        let authority: http::uri::Authority = address.parse().map_err(|_| "names no host".to_owned())?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err("names no host".to_owned());
        }
        let login = login.map(|(name, password)| (plain(name), plain(password)));
        Ok(Proxy { kind, host, port: authority.port_u16().unwrap_or(usual), login })
    }

    /// A connection to the server, through the proxy.
    /// A connection to `host` through it.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match self.kind {
            Scheme::Http => self.ask_http(&mut stream, host, port).await?,
            Scheme::Socks5 => self.ask_socks(&mut stream, host, port).await?,
        }
        Ok(stream)
    }

    async fn ask_http(&self, stream: &mut TcpStream, host: &str, port: u16) -> io::Result<()> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let mut ask = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        if let Some((name, password)) = &self.login {
            let pair = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
            ask.push_str(&format!("Proxy-Authorization: Basic {pair}\r\n"));
        }
        ask.push_str("\r\n");
        stream.write_all(ask.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            // Byte by byte: what comes after the answer is the server's.
            answer.push(stream.read_u8().await?);
            if answer.len() > ANSWER_MAX {
                return Err(io::Error::other("the proxy's answer does not end"));
            }
        }
        let first = String::from_utf8_lossy(&answer);
        let first = first.lines().next().unwrap_or_default();
        match first.split(' ').nth(1) {
            Some(code) if code.starts_with('2') => Ok(()),
            _ => Err(io::Error::other(format!("the proxy {}:{} answers {first:?}", self.host, self.port))),
        }
    }

    async fn ask_socks(&self, stream: &mut TcpStream, host: &str, port: u16) -> io::Result<()> {
        let refused = |why: &str| io::Error::other(format!("the proxy {}:{}: {why}", self.host, self.port));
        let short = |text: &str| u8::try_from(text.len()).map_err(|_| refused("a name is too long"));
        let offer: &[u8] = if self.login.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
        stream.write_all(offer).await?;
        let mut chosen = [0; 2];
        stream.read_exact(&mut chosen).await?;
        match (chosen, &self.login) {
            ([5, 0], _) => {}
            ([5, 2], Some((name, password))) => {
                let ask = [&[1, short(name)?][..], name.as_bytes(), &[short(password)?], password.as_bytes()];
                stream.write_all(&ask.concat()).await?;
                stream.read_exact(&mut chosen).await?;
                if chosen[1] != 0 {
                    return Err(refused("it does not take name and password"));
                }
            }
            _ => return Err(refused("it wants to know who asks")),
        }
        let ask = [&[5, 1, 0, 3, short(host)?][..], host.as_bytes(), &port.to_be_bytes()].concat();
        stream.write_all(&ask).await?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        if head[1] != 0 {
            return Err(refused(&format!("it cannot reach {host}:{port} (code {})", head[1])));
        }
        let rest = match head[3] {
            1 => 4 + 2,
            4 => 16 + 2,
            3 => usize::from(stream.read_u8().await?) + 2,
            _ => return Err(refused("it talks nonsense")),
        };
        stream.read_exact(&mut vec![0; rest]).await.map(|_| ())
    }
}

/// Undoes percent-encoding as far as it is one.
fn plain(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = (byte == b'%').then(|| after.split_at_checked(2)).flatten();
        let decoded = hex.and_then(|(hex, after)| {
            let hex = std::str::from_utf8(hex).ok().filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))?;
            Some((u8::from_str_radix(hex, 16).ok()?, after))
        });
        let (byte, after) = decoded.unwrap_or((byte, after));
        out.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn urls_are_read() {
        let rows = [
            ("http://p:3128", Ok("Http p:3128")),
            ("http://user:pa%40ss@p/", Ok("Http p:80")),
            ("socks5://[::1]:9", Ok("Socks5 ::1:9")),
            ("socks5://p", Ok("Socks5 p:1080")),
            ("https://p", Err("a proxy that itself wants TLS is not supported")),
            ("ftp://p", Err("unsupported scheme \"ftp\", must be http or socks5")),
            ("p:3128", Err("is not a URL with a scheme")),
            ("http://", Err("names no host")),
        ];
        for (url, want) in rows {
            let got = Proxy::parse(url).map(|p| format!("{p:?}"));
            assert_eq!(got, want.map(str::to_owned).map_err(str::to_owned), "{url}");
        }
        let login = Proxy::parse("http://user:pa%40ss@p").unwrap().login;
        assert_eq!(login, Some(("user".to_owned(), "pa@ss".to_owned())));
    }

    /// A proxy that hears `ask` and says `answer`, in turns, and then what the server would say.
    async fn proxy(turns: &[(&'static [u8], &'static [u8])]) -> u16 {
        let turns = turns.to_vec();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for (ask, answer) in turns {
                let mut heard = vec![0; ask.len()];
                stream.read_exact(&mut heard).await.unwrap();
                assert_eq!(String::from_utf8_lossy(&heard), String::from_utf8_lossy(ask));
                stream.write_all(answer).await.unwrap();
            }
            stream.write_all(b"server").await.unwrap();
        });
        port
    }

    async fn reach(url: String) -> io::Result<String> {
        let mut stream = Proxy::parse(&url).unwrap().connect("api.example", 6443).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    #[tokio::test]
    async fn servers_are_reached_through_them() {
        let ask = b"CONNECT api.example:6443 HTTP/1.1\r\nHost: api.example:6443\r\nProxy-Authorization: Basic dTpw\r\n\r\n";
        let port = proxy(&[(ask, b"HTTP/1.1 200 Connection established\r\nx: y\r\n\r\n")]).await;
        assert_eq!(reach(format!("http://u:p@127.0.0.1:{port}")).await.unwrap(), "server");
        let port = proxy(&[
            (&[5, 2, 0, 2], &[5, 2]),
            (b"\x01\x01u\x01p", &[1, 0]),
            (b"\x05\x01\x00\x03\x0bapi.example\x19\x2b", &[5, 0, 0, 1, 1, 2, 3, 4, 0, 80]),
        ])
        .await;
        assert_eq!(reach(format!("socks5://u:p@127.0.0.1:{port}")).await.unwrap(), "server");
    }

    #[tokio::test]
    async fn refusals_name_the_proxy() {
        let ask = b"CONNECT api.example:6443 HTTP/1.1\r\nHost: api.example:6443\r\n\r\n";
        let port = proxy(&[(ask, b"HTTP/1.1 403 Forbidden\r\n\r\n")]).await;
        let why = reach(format!("http://127.0.0.1:{port}")).await.unwrap_err().to_string();
        assert_eq!(why, format!("the proxy 127.0.0.1:{port} answers \"HTTP/1.1 403 Forbidden\""));
        let port = proxy(&[(&[5, 1, 0], &[5, 0xff])]).await;
        let why = reach(format!("socks5://127.0.0.1:{port}")).await.unwrap_err().to_string();
        assert!(why.contains("wants to know who asks"), "{why}");
    }
}
