"""The Python client of the Kubernetes project against `longshore apiserver`.

Started by tests/python_client.rs, which sets LONGSHORE_BINARY. The server is started, killed and started again here.
"""

import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ConflictError
from kubernetes.informer import ADDED, DELETED, MODIFIED, SharedInformer

# A killed server is what these tests are about; no need to read of it.
logging.disable(logging.CRITICAL)
BINARY = os.environ["LONGSHORE_BINARY"]
TIMEOUT = 90


class Server:
    """A server on a port and a directory that outlive it."""

    def __init__(self, *flags):
        self.dir = tempfile.mkdtemp(prefix="longshore-python-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.flags = flags
        self.start()

    def start(self):
        log = open(os.path.join(self.dir, "log"), "ab")
        command = [BINARY, "apiserver", "--bind-address=127.0.0.1", f"--secure-port={self.port}"]
        command += [f"--data-dir={self.dir}", *self.flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        self.api = until(self.connect, "the server is up")

    def connect(self):
        try:
            api = config.new_client_from_config(os.path.join(self.dir, "admin.kubeconfig"))
            client.CoreV1Api(api).read_namespace("default")
            return api
        except Exception:
            return None

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()


def until(condition, what):
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"in vain: {what}")


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


class Objects(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.kill)
        cls.core = client.CoreV1Api(cls.server.api)

    def refused(self, status, reason, call, *args, **more):
        with self.assertRaises(ApiException) as caught:
            call(*args, **more)
        self.assertEqual(caught.exception.status, status, caught.exception.body)
        self.assertIn(f'"reason":"{reason}"', caught.exception.body)

    def test_every_verb(self):
        made = self.core.create_namespaced_config_map("default", config_map("verbs", a="1"))
        self.assertTrue(made.metadata.uid)
        self.refused(409, "AlreadyExists", self.core.create_namespaced_config_map, "default", config_map("verbs"))
        made.data["a"] = "2"
        replaced = self.core.replace_namespaced_config_map("verbs", "default", made)
        self.refused(409, "Conflict", self.core.replace_namespaced_config_map, "verbs", "default", made)
        self.assertEqual(replaced.data, {"a": "2"})
        listed = self.core.list_namespaced_config_map("default", label_selector="no=such")
        self.assertEqual(listed.items, [])
        self.core.delete_namespaced_config_map("verbs", "default")
        self.refused(404, "NotFound", self.core.read_namespaced_config_map, "verbs", "default")
        self.refused(422, "Invalid", self.core.create_namespaced_config_map, "default", config_map("No Name"))

    def test_the_three_patches(self):
        apps = client.AppsV1Api(self.server.api)
        container = {"name": "a", "image": "x", "env": [{"name": "ONE", "value": "1"}]}
        labels = {"app": "patched"}
        apps.create_namespaced_deployment("default", {
            "metadata": {"name": "patched"},
            "spec": {"selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}},
        })

        def patch(body, kind):
            return apps.patch_namespaced_deployment("patched", "default", body, _content_type=kind)

        more = {"spec": {"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "TWO", "value": "2"}]}]}}}}
        done = patch(more, "application/strategic-merge-patch+json")
        self.assertEqual(len(done.spec.template.spec.containers[0].env), 2, "lists are merged by name")
        done = patch([{"op": "replace", "path": "/spec/replicas", "value": 4}], "application/json-patch+json")
        self.assertEqual(done.spec.replicas, 4)
        with self.assertRaises(ApiException) as caught:
            patch([{"op": "test", "path": "/spec/replicas", "value": 5}], "application/json-patch+json")
        self.assertEqual(caught.exception.status, 422)
        only = {"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "y"}]}}}}
        done = patch(only, "application/merge-patch+json")
        self.assertEqual([c.name for c in done.spec.template.spec.containers], ["b"], "lists are replaced")

    def test_apply_conflicts_and_force(self):
        maps = dynamic.DynamicClient(self.server.api).resources.get(api_version="v1", kind="ConfigMap")

        def apply(manager, force=False, **data):
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned"}, "data": data}
            return maps.server_side_apply(body, namespace="default", field_manager=manager, force_conflicts=force)

        apply("one", a="1", b="1")
        apply("two", c="2")
        with self.assertRaises(ConflictError) as caught:
            apply("two", a="2", c="2")
        self.assertIn('conflict with \\"one\\": .data.a', str(caught.exception.body))
        done = apply("two", force=True, a="2", c="2")
        self.assertEqual(done.data.to_dict(), {"a": "2", "b": "1", "c": "2"})
        done = apply("one", b="1")
        self.assertEqual(done.data.to_dict(), {"a": "2", "b": "1", "c": "2"}, "a is no longer one's to remove")
        done = apply("two", c="2")
        self.assertEqual(done.data.to_dict(), {"b": "1", "c": "2"})

    def test_custom_kinds(self):
        extensions = client.ApiextensionsV1Api(self.server.api)
        schema = {"type": "object", "properties": {"spec": {
            "type": "object", "properties": {"size": {"type": "integer", "minimum": 1, "default": 3}}}}}
        extensions.create_custom_resource_definition({
            "metadata": {"name": "boats.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced",
                     "names": {"plural": "boats", "kind": "Boat", "listKind": "Fleet"},
                     "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]},
        })
        custom = client.CustomObjectsApi(self.server.api)
        where = ("example.com", "v1", "default", "boats")
        boat = {"apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "a"}, "spec": {}}

        def make():
            try:
                return custom.create_namespaced_custom_object(*where, boat)
            except ApiException as error:
                self.assertEqual(error.status, 404, error.body)
                return None

        self.assertEqual(until(make, "the kind is served")["spec"]["size"], 3)
        boat["metadata"]["name"], boat["spec"]["size"] = "b", 0
        self.refused(422, "Invalid", custom.create_namespaced_custom_object, *where, boat)
        listed = custom.list_namespaced_custom_object(*where)
        self.assertEqual(listed["kind"], "Fleet")
        boats = dynamic.DynamicClient(self.server.api).resources.get(api_version="example.com/v1", kind="Boat")
        self.assertEqual([b.metadata.name for b in boats.get(namespace="default").items], ["a"])

    def test_pages(self):
        for n in range(25):
            self.core.create_namespaced_secret("default", {"metadata": {"name": f"page-{n:02}", "labels": {"p": ""}}})
        seen, token = [], None
        while True:
            page = self.core.list_namespaced_secret("default", limit=10, label_selector="p", _continue=token)
            seen += [s.metadata.name for s in page.items]
            token = page.metadata._continue
            if not token:
                break
        self.assertEqual(seen, [f"page-{n:02}" for n in range(25)])


class Watches(unittest.TestCase):
    def setUp(self):
        self.server = Server("--etcd-compaction-interval=2s")
        self.addCleanup(self.server.kill)
        self.core = client.CoreV1Api(self.server.api)

    def test_every_change_once_and_in_order(self):
        writers, watchers, changes = 4, 4, 40
        start = self.core.list_namespaced_config_map("default").metadata.resource_version
        seen = [[] for _ in range(watchers)]

        def follow(mine):
            core = client.CoreV1Api(self.server.connect())
            stream = watch.Watch().stream(core.list_namespaced_config_map, "default", resource_version=start)
            for event in stream:
                mine.append((event["type"], event["object"].metadata.name, int(event["object"].metadata.resource_version)))
                if len(mine) == writers * changes:
                    return

        def write(name):
            core = client.CoreV1Api(self.server.connect())
            made = core.create_namespaced_config_map("default", config_map(name, n="0"))
            for n in range(1, changes - 1):
                made.data["n"] = str(n)
                made = core.replace_namespaced_config_map(name, "default", made)
            core.delete_namespaced_config_map(name, "default")

        threads = [threading.Thread(target=follow, args=(mine,), daemon=True) for mine in seen]
        threads += [threading.Thread(target=write, args=(f"w{n}",), daemon=True) for n in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        for mine in seen:
            self.assertEqual(mine, seen[0], "all watchers see the same")
        versions = [version for _, _, version in seen[0]]
        self.assertEqual(len(versions), writers * changes)
        self.assertEqual(versions, sorted(set(versions)))
        kinds = [kind for kind, name, _ in seen[0] if name == "w0"]
        self.assertEqual(kinds, ["ADDED"] + ["MODIFIED"] * (changes - 2) + ["DELETED"])

    def test_a_compacted_revision_is_gone(self):
        old = self.core.list_namespaced_config_map("default").metadata.resource_version

        def expired():
            self.core.create_namespaced_config_map("default", config_map(f"m{time.monotonic_ns()}"))
            try:
                stream = watch.Watch().stream(self.core.list_namespaced_config_map, "default",
                                              resource_version=old, timeout_seconds=1)
                for _ in stream:
                    pass
                return None
            except ApiException as error:
                return error

        error = until(expired, "the revision is compacted")
        self.assertEqual(error.status, 410)
        self.assertIn("too old resource version", error.reason)

    def test_informers_survive_kills_and_compaction(self):
        informer = SharedInformer(self.core.list_namespaced_config_map, namespace="default")
        told = {ADDED: [], MODIFIED: [], DELETED: []}
        for kind, names in told.items():
            informer.add_event_handler(kind, lambda object, names=names: names.append(object.metadata.name))
        informer.start()
        self.addCleanup(informer.stop)
        for round in range(3):
            core = client.CoreV1Api(self.server.api)
            core.create_namespaced_config_map("default", config_map(f"r{round}"))
            until(lambda: informer.cache.get_by_key(f"default/r{round}"), f"round {round} is seen")
            if round == 1:
                self.server.kill()
                time.sleep(1)
                self.server.start()
            else:
                self.server.restart()
            core = client.CoreV1Api(self.server.api)
            self.assertEqual(core.read_namespaced_config_map(f"r{round}", "default").metadata.name, f"r{round}")
            # Long enough for everything before it to be compacted while nobody watches.
            time.sleep(0.5)
        core.delete_namespaced_config_map("r0", "default")
        until(lambda: not informer.cache.get_by_key("default/r0"), "the deletion is seen")
        until(lambda: informer.cache.get_by_key("default/r2"), "the last one is seen")
        for name in ("r0", "r1", "r2"):
            self.assertEqual(told[ADDED].count(name), 1, f"{name} was added once: {told}")
        self.assertEqual(told[DELETED], ["r0"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
