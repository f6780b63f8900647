"""A stand-in for the gateway and the workers: takes their flags, serves health and one fixed answer."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2
from baton.telemetry.tracing import Tracing

TOKENS = ["Grav\n", "ity", " pulls", "."]


class StubInference(inference_pb2_grpc.InferenceServicer):
    """Streams `TOKENS`; the prompt "fail" fails as a full gateway would, "slow" never goes on after two."""

    def __init__(self, model: str, otlp_endpoint: str) -> None:
        self._model = model
        self._tracing = Tracing("gateway", otlp_endpoint)

    def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(models=[inference_pb2.Model(name=self._model, max_model_len=512)])

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        prompt = request.text or request.chat.messages[-1].content
        if prompt == "fail":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "all decode workers are full")
        with self._tracing.tracer.start_as_current_span("gateway.request") as span:
            trace_id = f"{span.get_span_context().trace_id:032x}"
            names = ("gateway.tokenize", "gateway.route", "decode.reserve", "prefill.queue", "prefill.compute")
            for name in (*names, "kv.transfer", "decode.queue", "decode.run", "gateway.detokenize"):
                self._tracing.tracer.start_span(name).end()
            for index, text in enumerate(TOKENS):
                time.sleep(60 if prompt == "slow" and index == 2 else 0)
                first = {"trace_id": trace_id} if index == 0 else {}
                yield inference_pb2.GenerateResponse(request_id="r", text=text, token_ids=[index], **first)
        for index in range(1, request.sampling.n):
            end = sampling_pb2.FINISH_REASON_LENGTH
            yield inference_pb2.GenerateResponse(index=index, text=f"another {index}", token_ids=[9], finish_reason=end)
        yield inference_pb2.GenerateResponse(
            finish_reason=sampling_pb2.FINISH_REASON_STOP,
            usage=sampling_pb2.Usage(prompt_tokens=9, completion_tokens=len(TOKENS)),
            hand_over=inference_pb2.HandOver(
                prefill_worker="prefill-0", decode_worker="decode-0", blocks=1, bytes=4096, transfer_us=250
            ),
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--behaviour", default="serve")
    for flag in ("--model", "--model-name", "--host", "--port", "--port-file", "--otlp-endpoint"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--http-port-file", type=Path)
    options, others = parser.parse_known_args()
    print("arguments:", json.dumps(sys.argv[1:]), "others:", json.dumps(others))
    if options.behaviour == "die":
        sys.exit("the model does not fit: lower --kv-cache-bytes")
    if options.behaviour == "ignore-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.behaviour == "leave":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if options.behaviour == "with-child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    state = health_pb2.HealthCheckResponse
    servicer.set("", state.NOT_SERVING if options.behaviour == "never-ready" else state.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    inference = StubInference(options.model_name, options.otlp_endpoint)
    inference_pb2_grpc.add_InferenceServicer_to_server(inference, server)
    port = server.add_insecure_port(f"{options.host}:{options.port}")
    server.start()
    if options.http_port_file is not None:
        options.http_port_file.write_text("1")
    temporary = Path(options.port_file + ".new")
    temporary.write_text(str(port))
    temporary.rename(options.port_file)
    if options.behaviour == "die-when-told":
        while not Path(options.port_file + ".die").exists():
            time.sleep(0.02)
        sys.exit("out of memory")
    server.wait_for_termination()


if __name__ == "__main__":
    main()
