//! Images from a registry on loopback, through the calls of the CRI.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use cri::v1;
use cri::v1::image_service_server::ImageService;
use futures_util::StreamExt;
use images::{Digest, Store};
use registry::{Registries, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tonic::{Code, Request};

use super::{ImageServer, UsedImages};

struct Written;

impl UsedImages for Written {
    fn written(&self) -> (u64, u64) {
        (12_288, 3)
    }
}

struct Bench {
    server: ImageServer,
    /// By path behind `/v2/`.
    _content: Arc<BTreeMap<String, Vec<u8>>>,
    digests: BTreeMap<String, String>,
    _dir: tempfile::TempDir,
}

/// An archive without entries, of a length of its own.
fn layer(blocks: usize) -> Vec<u8> {
    vec![0; 1024 + 512 * blocks]
}

/// Images of one registry: name and user.
fn content(images: &[(&str, &str)]) -> (BTreeMap<String, Vec<u8>>, BTreeMap<String, String>) {
    let (mut all, mut digests) = (BTreeMap::new(), BTreeMap::new());
    for (at, (name, user)) in images.iter().enumerate() {
        let (repository, tag) = name.split_once(':').unwrap();
        let layers = [layer(0), layer(at + 1)];
        let ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
        let config = serde_json::json!({
            "os": "linux", "architecture": "amd64", "config": { "User": user },
            "rootfs": { "type": "layers", "diff_ids": ids },
        });
        let config = config.to_string().into_bytes();
        let blob =
            |bytes: &[u8]| serde_json::json!({ "digest": Digest::of(bytes).as_str(), "size": bytes.len() });
        let manifest = serde_json::json!({
            "schemaVersion": 2, "config": blob(&config), "layers": layers.each_ref().map(|layer| blob(layer)),
        });
        let manifest = manifest.to_string().into_bytes();
        let digest = Digest::of(&manifest).to_string();
        for bytes in [&config, &layers[0], &layers[1]] {
            all.insert(format!("{repository}/blobs/{}", Digest::of(bytes)), bytes.clone());
        }
        all.insert(format!("{repository}/manifests/{tag}"), manifest.clone());
        all.insert(format!("{repository}/manifests/{digest}"), manifest);
        digests.insert((*name).to_owned(), digest);
    }
    (all, digests)
}

async fn registry(content: Arc<BTreeMap<String, Vec<u8>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let content = content.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let path = head.split([' ', '?']).nth(1).unwrap();
                let body = path.strip_prefix("/v2/").and_then(|path| content.get(path));
                let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
                let body = body.cloned().unwrap_or_default();
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
            });
        }
    });
    address
}

impl Bench {
    async fn new(images: &[(&str, &str)]) -> Bench {
        let (content, digests) = content(images);
        let content = Arc::new(content);
        let address = registry(content.clone()).await;
        let dir = tempfile::tempdir().unwrap();
        // Two hosts that are not there: one has another address, the other a mirror.
        for (host, text) in [
            ("r.example", format!("server = \"http://{address}\"\n")),
            ("old.example", format!("[host.\"http://{address}\"]\n")),
        ] {
            let hosts = dir.path().join("certs.d").join(host);
            std::fs::create_dir_all(&hosts).unwrap();
            std::fs::write(hosts.join("hosts.toml"), text).unwrap();
        }
        let settings = Settings { hosts_dir: Some(dir.path().join("certs.d")), ..Settings::default() };
        let store = Store::open(&dir.path().join("store")).unwrap();
        let server = ImageServer::new(store, Registries::new(settings), Arc::new(Written));
        Bench { server, _content: content, digests, _dir: dir }
    }

    async fn pull(&self, name: &str) -> Result<String, tonic::Status> {
        let image = Some(spec(name));
        let request = v1::PullImageRequest { image, ..v1::PullImageRequest::default() };
        self.server.pull_image(Request::new(request)).await.map(|answer| answer.into_inner().image_ref)
    }

    async fn status(&self, name: &str) -> Option<v1::Image> {
        let request = v1::ImageStatusRequest { image: Some(spec(name)), verbose: false };
        self.server.image_status(Request::new(request)).await.unwrap().into_inner().image
    }

    async fn list(&self, filter: &str) -> Vec<String> {
        let filter = Some(v1::ImageFilter { image: Some(spec(filter)) });
        let listed =
            self.server.list_images(Request::new(v1::ListImagesRequest { filter: filter.clone() })).await;
        let listed = listed.unwrap().into_inner().images;
        let streamed =
            self.server.stream_images(Request::new(v1::StreamImagesRequest { filter })).await.unwrap();
        let pieces: Vec<_> = streamed.into_inner().collect().await;
        let streamed: Vec<v1::Image> = pieces.into_iter().flat_map(|piece| piece.unwrap().images).collect();
        assert_eq!(listed, streamed);
        listed.into_iter().map(|image| image.id).collect()
    }

    async fn remove(&self, name: &str) -> Result<(), tonic::Status> {
        let request = v1::RemoveImageRequest { image: Some(spec(name)) };
        self.server.remove_image(Request::new(request)).await.map(drop)
    }

    async fn used(&self) -> u64 {
        let info =
            self.server.image_fs_info(Request::new(v1::ImageFsInfoRequest {})).await.unwrap().into_inner();
        let [images, containers] = [&info.image_filesystems[0], &info.container_filesystems[0]];
        assert_eq!(containers.used_bytes, Some(v1::UInt64Value { value: 12_288 }));
        assert_eq!(images.fs_id, containers.fs_id);
        assert!(images.timestamp > 1_600_000_000_000_000_000);
        images.inodes_used.unwrap().value
    }
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.into(), ..v1::ImageSpec::default() }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn what_is_pulled_is_there_under_every_name_and_what_is_removed_under_none() {
    if !is_root() {
        return;
    }
    let bench = Bench::new(&[("a/app:latest", ""), ("a/other:v1", "")]).await;
    let id = bench.pull("r.example/a/app").await.unwrap();
    assert_eq!(bench.pull("old.example/a/app:latest").await.unwrap(), id);
    let status = bench.status(&id).await.unwrap();
    assert_eq!(status.repo_tags, ["old.example/a/app:latest", "r.example/a/app:latest"]);
    let digest = &bench.digests["a/app:latest"];
    assert_eq!(
        status.repo_digests,
        ["old.example", "r.example"].map(|host| format!("{host}/a/app@{digest}"))
    );
    for name in status.repo_tags.iter().chain(&status.repo_digests) {
        assert_eq!(bench.status(name).await.as_ref(), Some(&status), "{name}");
    }
    let other = bench.pull("r.example/a/other:v1").await.unwrap();
    assert_eq!(bench.list("").await.len(), 2);
    for (filter, want) in [
        ("r.example/a/app", vec![&id]),
        ("r.example/a/other:v1", vec![&other]),
        (&other, vec![&other]),
        ("r.example/a/other:v2", vec![]),
        ("No Name", vec![]),
    ] {
        assert_eq!(bench.list(filter).await.iter().collect::<Vec<_>>(), want, "{filter}");
    }
    // One name is all names.
    bench.remove("r.example/a/app").await.unwrap();
    bench.remove("r.example/a/app").await.unwrap();
    assert_eq!(bench.status("old.example/a/app").await, None);
    assert_eq!(bench.list("").await, [other]);
}

#[tokio::test]
async fn an_image_by_digest_has_no_tag_even_if_one_was_named() {
    if !is_root() {
        return;
    }
    let bench = Bench::new(&[("a/app:v1", "")]).await;
    let digest = &bench.digests["a/app:v1"];
    let by_digest = format!("r.example/a/app@{digest}");
    for name in [by_digest.clone(), format!("r.example/a/app:nowhere@{digest}")] {
        let id = bench.pull(&name).await.unwrap();
        let status = bench.status(&by_digest).await.unwrap();
        assert_eq!((status.repo_tags.len(), &status.repo_digests[..]), (0, std::slice::from_ref(&by_digest)));
        bench.remove(&id).await.unwrap();
    }
}

#[tokio::test]
async fn the_user_of_an_image_is_a_number_or_a_name() {
    if !is_root() {
        return;
    }
    let rows = [
        ("u/a:1", "1002"),
        ("u/b:1", "www-data"),
        ("u/c:1", "1003:1004"),
        ("u/d:1", "www-data:1004"),
        ("u/e:1", ""),
    ];
    let bench = Bench::new(&rows).await;
    let mut found = Vec::new();
    for (name, _) in rows {
        bench.pull(&format!("r.example/{name}")).await.unwrap();
        let image = bench.status(&format!("r.example/{name}")).await.unwrap();
        found.push((image.uid.map(|uid| uid.value), image.username));
    }
    let name = || "www-data".to_owned();
    assert_eq!(
        found,
        [
            (Some(1002), String::new()),
            (None, name()),
            (Some(1003), String::new()),
            (None, name()),
            (None, String::new())
        ]
    );
}

#[tokio::test]
async fn space_is_free_when_the_removal_is_answered_however_many_remove() {
    if !is_root() {
        return;
    }
    let bench = Bench::new(&[("a/app:v1", "")]).await;
    let before = bench.used().await;
    let id = bench.pull("r.example/a/app:v1").await.unwrap();
    let five = (0..5).map(|_| bench.remove(&id));
    for removed in futures_util::future::join_all(five).await {
        removed.unwrap();
    }
    assert_eq!(bench.used().await, before);
    assert!(bench.list("").await.is_empty());
    assert_eq!(std::fs::read_dir(bench._dir.path().join("store/layers")).unwrap().count(), 0);
}

#[tokio::test]
async fn the_same_image_is_pulled_by_many_at_once() {
    if !is_root() {
        return;
    }
    let bench = Bench::new(&[("a/app:v1", "")]).await;
    let all = futures_util::future::join_all((0..8).map(|_| bench.pull("r.example/a/app:v1"))).await;
    let ids: std::collections::BTreeSet<String> = all.into_iter().map(|id| id.unwrap()).collect();
    assert_eq!(ids.len(), 1);
    let mut text = String::new();
    bench.server.metrics().write(&mut text).unwrap();
    assert!(text.contains("longshore_runtime_image_pulls_total{code=\"Ok\"} 8"), "{text}");
    assert!(text.contains("longshore_runtime_image_pulls_under_way 0"), "{text}");
}

#[tokio::test]
async fn a_closer_look_shows_the_configuration() {
    if !is_root() {
        return;
    }
    let bench = Bench::new(&[("a/app:v1", "7")]).await;
    bench.pull("r.example/a/app:v1").await.unwrap();
    let request = v1::ImageStatusRequest { image: Some(spec("r.example/a/app:v1")), verbose: true };
    let info = bench.server.image_status(Request::new(request)).await.unwrap().into_inner().info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).unwrap();
    assert_eq!(info["imageSpec"]["config"]["User"], "7");
    let [first, second] = [Digest::of(&layer(0)), Digest::of(&layer(1))];
    assert_eq!(info["chainID"], Digest::of(format!("{first} {second}").as_bytes()).as_str());
}

#[tokio::test]
async fn what_cannot_be_pulled_has_a_code_and_says_why() {
    let bench = Bench::new(&[]).await;
    for (name, code, words) in [
        ("", Code::InvalidArgument, "image.image must not be empty"),
        ("Bad Name", Code::InvalidArgument, "couldn't parse image name"),
        ("r.example/a/app:v1", Code::NotFound, "404"),
        ("localhost:1/a/app:v1", Code::Unknown, "RegistryUnavailable: "),
    ] {
        let status = bench.pull(name).await.unwrap_err();
        assert_eq!(status.code(), code, "{name}: {status}");
        assert!(status.message().contains(words), "{name}: {status}");
    }
    assert_eq!(bench.remove("").await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(bench.status("").await, None);
}
