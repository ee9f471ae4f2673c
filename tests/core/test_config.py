from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from detpipe.core.config import LONGEST, Duration, Frozen, Spec, check_spec, check_specs
from detpipe.core.errors import ConfigError


class Section(Frozen):
    batch_size: int = 8
    learning_rate: float = 0.1
    limit: Annotated[int, Field(gt=0)] | Duration | None = None
    fast: bool = False
    size: int | bool = 0


def scale(
    progress: float,
    *,
    factor: float = 1.0,
    period: Duration | None = None,
    shares: Sequence[Annotated[float, Field(le=1)]] = (),
) -> float:
    return progress * factor


class TestFrozen:
    def test_an_unknown_key_gets_a_suggestion(self):
        with pytest.raises(ValidationError, match="'batchsize': did you mean 'batch_size'"):
            Section.model_validate({"batchsize": 4})

    def test_an_unknown_key_and_a_wrong_value_are_reported_together(self):
        with pytest.raises(ValidationError) as error:
            Section.model_validate({"batchsize": 4, "learning_rate": "fast"})
        assert "batch_size" in str(error.value)
        assert "learning_rate" in str(error.value)

    @pytest.mark.parametrize("key", ["batch_size", "learning_rate", "limit"])
    def test_true_is_no_number(self, key):
        with pytest.raises(ValidationError, match="true is no number"):
            Section.model_validate({key: True})

    def test_true_is_a_value_where_it_is_one(self):
        section = Section.model_validate({"fast": True, "size": True})
        assert section.fast is True and section.size is True

    def test_values_cannot_be_changed(self):
        with pytest.raises(ValidationError):
            Section().batch_size = 1


class TestDuration:
    @pytest.mark.parametrize(
        ("text", "steps"),
        [
            ("500 steps", 500),
            ("1 step", 1),
            ("2 epochs", 50),
            ("0.5 epochs", 12),
            ("80 images", 10),
        ],
    )
    def test_text_forms_in_steps_of_8_images_with_200_an_epoch(self, text, steps):
        duration = Duration.model_validate(text)
        assert duration.to_steps(images_per_step=8, images_per_epoch=200) == steps

    def test_a_mapping_means_the_same(self):
        assert Duration.model_validate({"epochs": 2}) == Duration.model_validate("2 epochs")

    @pytest.mark.parametrize(
        "wrong", [500, 1.5, "500", "five steps", {}, {"steps": 1, "epochs": 1}]
    )
    def test_a_length_without_exactly_one_unit_is_refused(self, wrong):
        with pytest.raises(ValidationError):
            Duration.model_validate(wrong)

    @pytest.mark.parametrize(
        "wrong", ["1e13 steps", {"images": 1e300}, {"epochs": math.inf}, {"steps": math.nan},
                  {"steps": -1}]
    )  # fmt: skip
    def test_a_length_that_no_run_can_have_is_refused(self, wrong):
        with pytest.raises(ValidationError, match="a duration must be"):
            Duration.model_validate(wrong)

    def test_the_longest_length_is_fine(self):
        assert Duration.model_validate("1e12 images").images == LONGEST

    def test_a_number_alone_is_told_how_to_write_it(self):
        with pytest.raises(ValidationError, match="500 has no unit; write '500 steps'"):
            Duration.model_validate(500)

    def test_less_than_one_step_is_one_step_and_zero_is_never(self):
        assert Duration(images=1).to_steps(images_per_step=8, images_per_epoch=200) == 1
        assert Duration(steps=0).to_steps(images_per_step=8, images_per_epoch=200) == 0


class TestSpec:
    def test_build_passes_options_and_those_resources_that_are_asked_for(self):
        spec = Spec(use=f"{__name__}.scale", factor=3)
        assert spec.build(2.0, period=None, unknown_resource=1) == 6.0

    def test_options_become_the_annotated_type(self):
        spec = Spec(use=f"{__name__}.scale", period="3 epochs")
        check_spec(spec, where="x", args=1)

    def test_an_option_of_the_wrong_type_is_named(self):
        with pytest.raises(ConfigError, match=r"train.schedule: .*scale: factor: .*number"):
            check_spec(Spec(use=f"{__name__}.scale", factor="big"), where="train.schedule", args=1)

    def test_a_mistyped_option_gets_a_suggestion(self):
        with pytest.raises(ConfigError, match=r"has no option 'factr' .did you mean 'factor'"):
            check_spec(Spec(use=f"{__name__}.scale", factr=1), where="x", args=1)

    def test_null_takes_back_an_option_that_the_target_does_not_have(self):
        assert Spec(use=f"{__name__}.scale", betas=None).build(2.0) == 2.0

    def test_a_missing_option_is_named(self):
        with pytest.raises(ConfigError, match="needs the option 'progress'"):
            check_spec(Spec(use=f"{__name__}.scale"), where="x")

    def test_what_the_program_gives_is_no_option(self):
        spec = Spec(use=f"{__name__}.scale", elsewhere=1)
        with pytest.raises(ConfigError, match=r"^w: [a-z._]*scale has no option 'elsewhere'"):
            check_spec(spec, where="w", args=1, provided=("elsewhere",))
        spec = Spec(use=f"{__name__}.scale", factor=2, period="x")
        with pytest.raises(ConfigError, match=r"w: .*scale: 'factor' is given by the program, got 2"
                           r"; take it out; .*scale: period: .*'x' is no duration"):  # fmt: skip
            check_spec(spec, where="w", args=1, provided=("factor", "elsewhere"))

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"factor": math.nan}, "factor: NaN is no value"),
            ({"factor": True}, "factor: true is no number"),
            ({"shares": [0.5, math.nan]}, "shares: NaN is no value"),
            ({"shares": [0.5, 7]}, r"shares\.1: Input should be less .*, got 7"),
            ({"period": "long"}, "period: .*'long' is no duration.*, got 'long'"),
        ],
    )
    def test_an_option_with_an_impossible_value_is_named_with_it(self, option, message):
        with pytest.raises(ConfigError, match=rf"w: .*scale: {message}"):
            check_spec(Spec(use=f"{__name__}.scale", **option), where="w", args=1)

    @pytest.mark.parametrize(
        ("path", "args", "message"),
        [
            ("math.log", 1, "w: 'log' has no signature .* wrap it in a function of your own"),
            ("builtins.dict", 0, "w: 'dict' has no signature"),
            ("builtins.len", 0, "builtins.len takes 'obj' by position, where no option can"),
            ("builtins.len", 2, "builtins.len takes 1 arguments by position, but would be given 2"),
        ],
    )
    def test_what_cannot_be_called_that_way_says_so(self, path, args, message):
        with pytest.raises(ConfigError, match=message):
            check_spec(Spec(use=path), where="w", args=args)
        check_spec(Spec(use="builtins.len"), where="w", args=1)
        check_spec(Spec(use="builtins.print"), where="w", args=3)

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("scale", "no full import path"),
            ("detpipe.nowhere.f", "there is no module 'detpipe.nowhere'"),
            ("detpipe.core.confg.Spec", "no module .*did you mean 'detpipe.core.config'"),
            ("detpipe.core.config.chek_spec", "did you mean 'detpipe.core.config.check_spec'"),
            ("detpipe.core.config.Every.__doc__", "there is no module"),
        ],
    )
    def test_a_path_that_does_not_import_says_why(self, path, message):
        with pytest.raises(ConfigError, match=message):
            check_spec(Spec(use=path), where="x")

    def test_the_mistakes_of_several_specs_come_together(self):
        with pytest.raises(ConfigError) as error:
            check_specs(
                (Spec(use="nowhere.f"), "first", 0, ()),
                (None, "absent", 0, ()),
                (Spec(use=f"{__name__}.scale", factr=1), "second", 1, ()),
            )
        assert "first:" in str(error.value)
        assert "second:" in str(error.value)


def test_configuration_does_not_import_torch():
    code = (
        "import sys, detpipe.core.config, detpipe.train.config, detpipe.data.config, "
        "detpipe.evaluate.config, detpipe.models.config; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
