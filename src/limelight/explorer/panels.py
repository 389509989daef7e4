"""The work of every panel in one import, which loads PyTorch; only the worker imports it."""

from limelight.explorer.attention import head_frame as head_frame
from limelight.explorer.attention import link_frame as link_frame
from limelight.explorer.attention import read_text as read_text
from limelight.explorer.attention import text_frame as text_frame
from limelight.explorer.cause import cut as cut
from limelight.explorer.cause import effects as effects
from limelight.explorer.exports import html_file as html_file
from limelight.explorer.exports import json_file as json_file
from limelight.explorer.generation import continuation as continuation
from limelight.explorer.long import overview_frame as overview_frame
from limelight.explorer.long import tile_frame as tile_frame
from limelight.explorer.long import tokens_frame as tokens_frame
from limelight.explorer.meaning import word_path as word_path
from limelight.explorer.pictures import pixels_of as pixels_of
from limelight.explorer.roles import roles as roles
from limelight.explorer.steps import steps_frame as steps_frame
from limelight.explorer.steps import worked_example as worked_example
from limelight.explorer.why import score_parts as score_parts
