"""The sidebar's KV length: fewer queries than keys, in the URL, empty by default."""

from __future__ import annotations

from app_driver import compiled, texts, until
from words import says


def test_an_empty_kv_field_changes_nothing(open_app):
    at = open_app()
    assert not at.exception
    assert at.number_input(key="KV").value is None
    assert "KV" not in at.query_params
    assert "B1 H1 S128 D64 fp16" in texts(at)


def test_a_link_restores_it_and_the_page_shows_the_problem(open_app):
    at = until(open_app(variant="v05", gpu="L4", S="1", KV="4096", D="128"), compiled)
    assert not at.exception
    assert not at.error
    assert at.number_input(key="KV").value == 4096
    assert "B1 H1 S1 KV4096 D128 fp16" in texts(at)


def test_kv_field_is_kept_in_the_url(open_app):
    at = open_app()
    at.number_input(key="KV").set_value(512).run()
    assert at.query_params["KV"] == "512"
    assert "B1 H1 S128 KV512 D64 fp16" in texts(at)
    at.number_input(key="KV").set_value(None).run()
    assert "KV" not in at.query_params
    assert "B1 H1 S128 D64 fp16" in texts(at)


def test_causal_needs_at_least_as_many_keys_as_queries(open_app):
    at = open_app(S="512", KV="1", causal="true")
    assert not at.exception
    assert len(at.error) == 1
    assert says(at.error[0].value, "causal_without_keys", "511", "512")


def test_more_of_a_problem_is_in_its_link(open_app):
    at = open_app(variant="v10", S="64", KV="200", causal="true", window="32", softcap="30")
    assert not at.exception
    assert not at.error
    assert at.number_input(key="window").value == 32
    assert at.number_input(key="softcap").value == 30
    at.toggle(key="sinks").set_value(True).run()
    assert "true" in at.query_params["sinks"]
    assert any("causal window32 softcap30 sinks" in m.value for m in (*at.markdown, *at.caption))


def test_a_decode_preset_fills_it_and_another_one_empties_it(open_app):
    at = open_app()
    at.menu_button(key="preset").click("llama3-8b-decode-16384").run()
    assert not at.exception
    assert at.number_input(key="S").value == 1
    assert at.number_input(key="KV").value == 16_384
    assert at.menu_button(key="preset").label == "Problem: llama3-8b-decode-16384"
    at.menu_button(key="preset").click("vit-b16").run()
    assert at.number_input(key="KV").value is None
    assert "KV" not in at.query_params


def test_shared_kv_heads_have_a_field_and_a_place_in_the_url(open_app):
    at = until(open_app(variant="v08", gpu="L4", H="8", HKV="2"), compiled)
    assert not at.exception
    assert not at.error
    assert "B1 H8 HKV2 S128 D64 fp16" in texts(at)
    at.number_input(key="HKV").set_value(3).run()
    assert at.query_params["HKV"] == "3"
    assert says(at.error[0].value.replace("\\", ""), "heads_not_shared", "8", "3")
    at.number_input(key="HKV").set_value(None).run()
    assert "HKV" not in at.query_params
    assert "B1 H8 S128 D64 fp16" in texts(at)


def test_a_variant_without_gqa_gives_a_reason(open_app):
    at = open_app(variant="v01", gpu="L4")
    at.menu_button(key="preset").click("llama3-8b-decode-1024").run()
    assert at.number_input(key="HKV").value == 8
    assert says(texts(at), "query_heads_share", "32", "8")


def test_the_batch_page_recommends_for_decoding(open_app):
    at = open_app("batch", variant="v05", gpu="L4", S="16", KV="4096", D="128")
    assert not at.exception
    assert not at.error
    assert at.number_input(key="KV").value == 4096
