//! Archives that a client sends, and a client that is attached: through the daemon's own sockets.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::BytesMut;
use cri::archives_v1::ImportRequest;
use cri::v1::AttachRequest;
use cri::{Archives, Endpoint};
use http::{HeaderMap, HeaderValue, Method};
use streaming::dial::{self, Opened};
use streaming::spdy::{self, Decoder, Encoder, Frame};
use support::{DEADLINE, IMAGE, Place, archive, container, exited};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

async fn import(place: &Place, bytes: &[u8], pin: bool) -> cri::Result<Vec<cri::archives_v1::Imported>> {
    let archives = Archives::new(&Endpoint::from(place.path("runtime.sock").as_path()));
    let (pieces, to_send) = mpsc::channel(1);
    let send = async {
        for piece in bytes.chunks(300_000) {
            // A runtime that has seen enough takes no more.
            let _ = pieces.send(ImportRequest { data: piece.to_vec(), pin }).await;
        }
        drop(pieces);
    };
    tokio::join!(archives.import(to_send), send).0
}

#[tokio::test]
async fn an_archive_is_imported_while_the_runtime_runs_and_may_be_pinned() {
    let mut place = Place::new();
    let client = place.start();
    let whole = archive(&place);
    let before = client.list_images().await.unwrap();
    client.remove_image(cri::v1::ImageSpec { image: IMAGE.into(), ..Default::default() }).await.unwrap();
    assert!(client.list_images().await.unwrap().is_empty());
    for bad in [&whole[..whole.len() / 2], &b"no archive"[..], &[]] {
        let error = import(&place, bad, false).await.unwrap_err();
        assert_eq!(error.op, "import images into", "{error}");
        assert!(client.list_images().await.unwrap().is_empty());
    }
    let imported = import(&place, &whole, true).await.unwrap();
    assert_eq!(
        (imported[0].id.as_str(), &imported[0].names[..]),
        (before[0].id.as_str(), &[IMAGE.to_owned()][..])
    );
    let after = client.list_images().await.unwrap();
    assert_eq!((before[0].pinned, after[0].pinned), (false, true));
    // What is exported can be imported. Its layers are archived anew, so it is another image by the same name.
    let archives = Archives::new(&Endpoint::from(place.path("runtime.sock").as_path()));
    let (mut export, mut exported) = (archives.export(vec![IMAGE.into()]).await.unwrap(), Vec::new());
    while let Some(piece) = export.piece().await.unwrap() {
        exported.extend_from_slice(&piece);
    }
    let again = import(&place, &exported, false).await.unwrap();
    assert_eq!(again[0].names, [IMAGE]);
    assert!(
        client
            .image_status(cri::v1::ImageSpec { image: again[0].id.clone(), ..Default::default() })
            .await
            .unwrap()
            .is_some()
    );
    let error = archives.export(vec!["localhost/none:v1".into()]).await.unwrap_err();
    assert!(error.is_not_found() && error.message.contains("localhost/none:v1"), "{error}");
    place.stop().await;
    // A daemon of later knows it still.
    let known = place.start().list_images().await.unwrap();
    assert!(known.iter().any(|image| image.pinned && image.id == imported[0].id), "{known:?}");
}

#[tokio::test]
async fn an_attachment_ends_a_shell_that_hears_one_client_only() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("attached");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let mut shell = container("shell", "");
    (shell.command, shell.args) = (vec!["/bin/sh".into()], vec![]);
    (shell.stdin, shell.stdin_once) = (true, true);
    let id = client.create_container(&sandbox, shell, config).await.unwrap();
    client.start_container(&id).await.unwrap();
    let request =
        AttachRequest { container_id: id.clone(), stdin: true, stdout: true, stderr: true, tty: false };
    let url = client.attach(request).await.unwrap();
    let heard = tokio::time::timeout(DEADLINE, converse(&url, b"echo hello\n")).await.unwrap();
    assert_eq!(heard, b"hello\n");
    assert_eq!(exited(&client, &id).await.exit_code, 0);
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
    assert_eq!(zombies(), 0, "the exit code of a keeper was not taken");
}

/// Opens the streams, says this, closes the input, and hears until the end.
async fn converse(url: &str, input: &[u8]) -> Vec<u8> {
    let mut headers = HeaderMap::new();
    headers.insert("connection", HeaderValue::from_static("Upgrade"));
    headers.insert("upgrade", HeaderValue::from_static("SPDY/3.1"));
    headers.insert("x-stream-protocol-version", HeaderValue::from_static("v4.channel.k8s.io"));
    let Opened::Upgraded { mut stream, .. } = dial::open(url, Method::POST, headers).await.unwrap() else {
        panic!("no upgrade")
    };
    let (mut encoder, mut out) = (Encoder::default(), BytesMut::new());
    for (id, name) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")] {
        encoder.open(&mut out, id, &[("streamtype", name)]);
    }
    spdy::put_data(&mut out, 3, input, true);
    stream.write_all(&out).await.unwrap();
    let (mut decoder, mut heard) = (Decoder::default(), Vec::new());
    while stream.read_buf(decoder.buffer()).await.is_ok_and(|n| n > 0) {
        while let Some(frame) = decoder.next_frame().unwrap() {
            if let Frame::Data { stream: 5, bytes, .. } = frame {
                heard.extend_from_slice(&bytes);
            }
        }
    }
    heard
}

/// Children of this process that nobody has asked how they ended; a moment is theirs.
fn zombies() -> usize {
    let own = std::process::id().to_string();
    let is_ours = |entry: &std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(&own)
    };
    let count = || std::fs::read_dir("/proc").unwrap().flatten().filter(is_ours).count();
    let until = std::time::Instant::now() + DEADLINE;
    while count() > 0 && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    count()
}
